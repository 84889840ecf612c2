"""What the HTTP layer works with: the server, and each model that it serves.

Made once by `milepost.assemble`. Endpoints ask the `Server` for the `ServedModel` that a request
names, and hand that on; today there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from milepost.api.gate import RequestHistory
from milepost.chat.prompts.prepare import PromptPreparer
from milepost.chat.reply_memory.reply_disk import ReplyDisk
from milepost.chat.reply_memory.reply_store import ReplyStore
from milepost.chat.vocab import Vocab
from milepost.config import ServerSettings, Settings
from milepost.errors import InvalidRequest, MilepostError, NotFound, Unavailable
from milepost.media.loader import MediaLoader
from milepost.protocol.messages import ModelInfo
from milepost.workers.client import EngineClient

T = TypeVar("T")

LOADING = "Loading model"  # llama-server's very words: clients look for them
# Arbitrary: 10,000 tokens are prepared in about 10 ms; less is not worth a thread.
LARGE_BODY_BYTES = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model: its engine process, what makes prompts for it, and what it remembers."""

    name: str
    settings: Settings  # of the engine, chat, sampling; `server` is for `Server` alone
    engine: EngineClient
    vocab: Vocab
    prompts: PromptPreparer
    media: MediaLoader
    replies: ReplyStore
    reply_disk: ReplyDisk | None = None
    created: int  # Unix time at which the model was set up, for `/v1/models`

    @property
    def info(self) -> ModelInfo:
        """What is known about the loaded model; raises Unavailable before it is loaded."""
        if self.engine.model is None:
            raise Unavailable(LOADING)
        return self.engine.model

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that it was given."""
        return self.settings.server.alias

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, the one that answers have first."""
        path = Path(self.settings.engine.model_path)
        names = (self.name, *self.aliases, path.name, path.stem)
        return tuple(dict.fromkeys(name for name in names if name))

    def forget_replies(self, history_keys: tuple[bytes, ...] | None = None) -> None:
        """Forget what was sampled after these beginnings of conversations, or everything.

        On disk, too. Prompts, which hold it as well, are forgotten either way; media with
        everything only.
        """
        if history_keys is None:
            self.replies.forget_all()
            self.media.forget()
        else:
            self.replies.forget_histories(history_keys)
        if self.reply_disk is not None:
            self.reply_disk.forget_histories(history_keys)
        self.prompts.forget_prompts()

    def check_ready(self) -> None:
        """Raise Unavailable while the model is not loaded."""
        if self.engine.state != "ready":
            raise self._unready()

    def _unready(self) -> MilepostError:
        if self.engine.state == "failed":
            return Unavailable(f"the model cannot be served: {self.engine.failure}")
        if self.engine.state == "restarting":
            return Unavailable("the engine has ended unexpectedly and is restarting")
        return Unavailable(LOADING)

    def close(self) -> None:
        """Write what is to be written; the engine is the supervisor's to end."""
        if self.reply_disk is not None:
            self.reply_disk.close()
        self.media.close()


class Preparation:
    """Runs what turns a request into tokens; large requests on a thread, so that streams go on.

    Rendering and tokenising a long conversation takes tens of milliseconds, much of it in native
    code that releases the GIL. There is one thread: more would only take cores from the engine.
    Small requests are prepared on the event loop meanwhile, so templates and tokenizer must not
    keep state between calls that two threads could see half-changed.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare")

    async def run(self, num_body_bytes: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; for a large body it runs on the thread."""
        if num_body_bytes < LARGE_BODY_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """End the thread after what it does now."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What all models share."""

    settings: ServerSettings
    models: tuple[ServedModel, ...]  # at least one; the first is meant where none is named
    preparation: Preparation = field(default_factory=Preparation)
    requests: RequestHistory = field(default_factory=RequestHistory)

    def choose_model(self, name: object = None) -> ServedModel:
        """Return the model that a request names; without a name, or with an empty one, the first.

        Raises NotFound for one that is not served.
        """
        if name is None or name == "":
            return self.models[0]
        if not isinstance(name, str):
            raise InvalidRequest("'model' must be a string", param="model")
        for model in self.models:
            if name in model.names:
                return model
        served = ", ".join(name for model in self.models for name in model.names)
        raise NotFound(f"there is no model {name!r} here; served is {served}")

    def check_ready(self) -> None:
        """Raise Unavailable while no request can be answered, whatever it asks for."""
        self.models[0].check_ready()

    def close(self) -> None:
        """End what belongs to the HTTP layer."""
        self.preparation.close()
        for model in self.models:
            model.close()

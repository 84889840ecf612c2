"""What the HTTP layer works with; made once by `milepost.assemble`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from milepost.api.preparation import Preparation
from milepost.api.request_log import RequestHistory
from milepost.api.tools_memory import ToolsMemory
from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.prompts.boundaries import BoundaryFinder
from milepost.chat.prompts.tokenizer import PromptTokenizer
from milepost.chat.replies.schema_check import GrammarChecker
from milepost.chat.reply_memory.reply_disk import ReplyDisk
from milepost.chat.reply_memory.reply_store import ReplyStore
from milepost.chat.templates.template_set import TemplateSet
from milepost.chat.vocab import Vocab
from milepost.config import Settings
from milepost.errors import InvalidRequest, NotFound, Unavailable
from milepost.media.loader import MediaLoader
from milepost.protocol.messages import ModelInfo
from milepost.workers.client import EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of the front end that endpoints use."""

    engine: EngineClient
    vocab: Vocab
    templates: TemplateSet
    boundaries: BoundaryFinder
    tokenizer: PromptTokenizer
    media: MediaLoader
    settings: Settings
    model_name: str
    created: int  # Unix time at which the model was set up, for `/v1/models`
    preparation: Preparation = field(default_factory=Preparation)
    requests: RequestHistory = field(default_factory=RequestHistory)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    tools: ToolsMemory = field(default_factory=ToolsMemory)
    replies: ReplyStore = field(default_factory=ReplyStore)
    reply_disk: ReplyDisk | None = None
    special_tokens: SpecialTokens = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "special_tokens", SpecialTokens.of(self.vocab))

    @property
    def model(self) -> ModelInfo:
        """What is known about the loaded model; raises Unavailable before it is loaded."""
        if self.engine.model is None:
            raise Unavailable(LOADING)
        return self.engine.model

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names that requests may use, the served one first."""
        path = Path(self.settings.engine.model_path)
        names = (self.model_name, *self.settings.server.alias, path.name, path.stem)
        return tuple(dict.fromkeys(name for name in names if name))

    def forget_replies(self, history_keys: tuple[bytes, ...] | None = None) -> None:
        """Forget what was sampled after these beginnings of conversations, or everything.

        On disk, too.

        Prompts, which hold it as well, are forgotten either way; media with everything only.
        """
        if history_keys is None:
            self.replies.forget_all()
            self.media.forget()
        else:
            self.replies.forget_histories(history_keys)
        if self.reply_disk is not None:
            self.reply_disk.forget_histories(history_keys)
        self.boundaries.forget_conversations()  # which hold tokens of replies that came back
        self.tokenizer.forget_prompts()

    def check_model_name(self, name: object) -> None:
        """Raise NotFound unless the model of a request is the one that is served.

        A request without a name, or with an empty one, means whatever is served.
        """
        if name is None or name == "":
            return
        if not isinstance(name, str):
            raise InvalidRequest("'model' must be a string", param="model")
        if name not in self.model_names:
            raise NotFound(
                f"there is no model {name!r} here; served is {', '.join(self.model_names)}"
            )


LOADING = "Loading model"  # llama-server's very words: clients look for them

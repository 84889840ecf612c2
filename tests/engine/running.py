"""Real engine processes for tests, and answers collected from them.

A `RunningEngine` keeps one event loop, so that a process can serve many tests: `run` goes on with
it for one coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests import models
from tests.processes import clean_environment
from tests.requests import split_request

from milepost.config import EngineSettings, LogSettings
from milepost.protocol.counters import Counters, DiskSizes
from milepost.protocol.messages import (
    Delta,
    Finished,
    GenerationParams,
    PromptInput,
    PromptProgress,
    Status,
    TokenLogprob,
)
from milepost.protocol.sampling import SamplingParams
from milepost.workers.client import EngineClient, MediaContents
from milepost.workers.supervisor import Supervisor

T = TypeVar("T")

TIMEOUT_S = 60.0  # far more than any test needs: what hangs must fail
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
NO_CONTENTS: Mapping[bytes, bytes] = {}
# Distance of two logprobs that another layout of the cells may turn around (measured: 0.05).
NOISE = 0.2


@dataclass(slots=True)
class ChoiceAnswer:
    """What came for one choice."""

    deltas: list[Delta] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def reason(self) -> str:
        assert self.finished is not None
        return self.finished.reason


@dataclass(slots=True)
class Answer:
    """All events of one request, sorted by choice."""

    choices: list[ChoiceAnswer]
    progress: list[PromptProgress] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.choices[0].tokens

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reason(self) -> str:
        return self.choices[0].reason

    @property
    def end(self) -> Finished:
        finished = self.choices[0].finished
        assert finished is not None
        return finished


@dataclass(slots=True)
class RunningEngine:
    """An engine process that has loaded its model."""

    client: EngineClient
    supervisor: Supervisor
    runner: asyncio.Runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop; TimeoutError when it hangs."""
        return self.runner.run(asyncio.wait_for(coroutine, TIMEOUT_S))

    def ask(self, tokens: Sequence[int], **fields: Any) -> Answer:
        """Return the whole answer to one request; greedy unless told otherwise."""
        return self.run(collect(self.client, tokens, **fields))

    def ask_all(self, *requests: dict[str, Any]) -> list[Answer]:
        """Return the answers to requests that are sent at once."""

        async def ask() -> list[Answer]:
            return await asyncio.gather(*(collect(self.client, **fields) for fields in requests))

        return self.run(ask())

    def status(self) -> Status:
        return self.run(self.client.get_status())

    def disk_sizes(self) -> DiskSizes:
        return self.status().disk

    def counters(self) -> Counters:
        return self.status().counters

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no slot is busy."""
        status = self.status()
        return status.num_waiting == 0 and all(slot.state == "idle" for slot in status.slots)


def spec(tokens: Sequence[int], **fields: Any) -> tuple[PromptInput, GenerationParams]:
    """Return a request; greedy unless told otherwise."""
    return split_request(tokens, **{"sampling": GREEDY, **fields})


async def collect(
    client: EngineClient,
    tokens: Sequence[int],
    media_data: Mapping[bytes, bytes] = NO_CONTENTS,
    **fields: Any,
) -> Answer:
    """Return the whole answer to one request; `media_data` are contents of its media by key."""
    prompt, params = spec(tokens, **fields)
    answer = Answer([ChoiceAnswer() for _ in range(params.num_choices)])
    async with client.generate(prompt, params, MediaContents(media_data)) as generation:
        async for event in generation:
            match event:
                case PromptProgress():
                    answer.progress.append(event)
                case Delta():
                    assert answer.choices[event.choice].finished is None
                    answer.choices[event.choice].deltas.append(event)
                case Finished():
                    assert answer.choices[event.choice].finished is None
                    answer.choices[event.choice].finished = event
    return answer


@contextlib.contextmanager
def running_engine(model: Path, **settings: Any) -> Iterator[RunningEngine]:
    """Start an engine process for a model and stop it at the end of the block."""
    # One thread: several engines compute at once on few cores.
    settings = {
        **{"parallel": 4, "ctx_size": 8192, "threads": 1, "cache_on_disk": False},
        **settings,
    }
    client = EngineClient()
    supervisor = Supervisor(
        client,
        EngineSettings(model_path=str(model), **settings),
        LogSettings(verbosity=2),
        environment=clean_environment({}),
    )

    async def start() -> None:
        await supervisor.start()

    with asyncio.Runner() as runner:
        engine = RunningEngine(client, supervisor, runner)
        try:
            engine.run(start())
            yield engine
        finally:
            runner.run(supervisor.stop())


def check_same(left: Answer, right: Answer) -> None:
    """Check that two answers, with rivals, are the same one up to the noise of a layout."""
    for ours, theirs in zip(logprobs(left), logprobs(right), strict=True):
        ranks = {token: logprob for token, _, logprob in theirs.top}
        if ours.token == theirs.token:
            assert abs(ours.logprob - theirs.logprob) < NOISE
            continue
        assert theirs.logprob - ranks[ours.token] < NOISE
        return  # from here on they continue different texts


def logprobs(answer: Answer) -> list[TokenLogprob]:
    return [one for delta in answer.choices[0].deltas for one in delta.logprobs]


def prompt_tokens(num_tokens: int, seed: int = 0) -> list[int]:
    """Return random letters; prompts of other seeds, below 94, begin with other tokens."""
    letters = range(models.token_id("a"), models.token_id("z") + 1)
    first = models.token_id("!") + seed % 94
    return [first, *random.Random(seed).choices(letters, k=num_tokens)][:num_tokens]

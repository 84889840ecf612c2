"""Restores that fail or would be too slow, in this process: what the report makes of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.engine.running import GREEDY, prompt_tokens
from tests.engine.test_loop import FakeConnection
from tests.requests import make_generate

from milepost.config import EngineSettings
from milepost.engine.loop import Loop
from milepost.engine.main import make_context, make_runtime
from milepost.errors import StateRefused
from milepost.libllama import Model, ModelParams, open_library
from milepost.libllama.state import StateIO
from milepost.protocol.cache import CacheReport
from milepost.protocol.messages import (
    Finished,
    GetStatus,
    Status,
)


@dataclass
class RefusingStates:
    """States that can be read, and are refused when they are written while `refuses`."""

    states: StateIO
    refuses: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.refuses and name.startswith("write"):
            raise StateRefused("damaged")
        return getattr(self.states, name)


@dataclass
class Bench:
    """A loop with one slot, and what its states refuse."""

    loop: Loop
    connection: FakeConnection
    states: RefusingStates

    def ask(self, tokens: list[int]) -> CacheReport:
        """Return the report on a prompt."""
        self.connection.sent.clear()
        self.connection.inbox.append(make_generate(1, tokens, sampling=GREEDY, max_tokens=1))
        for _ in range(100):
            self.loop.step()
            for message in self.connection.sent:
                if isinstance(message, Finished):
                    assert message.cache is not None
                    assert message.cache.num_reused == message.timings.cache_n
                    return message.cache
        pytest.fail("not done after 100 steps")

    def status(self) -> Status:
        self.connection.inbox.append(GetStatus(status_id=1))
        self.loop.step()
        return next(message for message in self.connection.sent if isinstance(message, Status))


@pytest.fixture(params=["full", "hybrid"])
def bench(request: pytest.FixtureRequest, tiny_models: dict[str, Any]) -> Iterator[Bench]:
    settings = EngineSettings(ctx_size=2048, parallel=1, threads=1)
    path = tiny_models[request.param]
    with (
        Model(open_library(), path, ModelParams()) as model,
        make_context(model, settings, 0) as context,
    ):
        runtime = make_runtime(context, settings, 0)
        connection, states = FakeConnection(), RefusingStates(runtime.states)
        runtime = replace(runtime, states=states)  # type: ignore[arg-type]
        loop = Loop(runtime, connection, settings, time.perf_counter)  # type: ignore[arg-type]
        yield Bench(loop, connection, states)


def test_a_state_that_is_refused_is_computed_and_told(bench: Bench) -> None:
    prompt = prompt_tokens(300, seed=1)
    bench.ask(prompt)
    bench.ask(prompt_tokens(100, seed=2))
    bench.states.refuses = True

    report = bench.ask(prompt + prompt_tokens(50, seed=3))

    assert (report.reason, report.source) == ("restore_failed", "none")
    assert report.num_failed_restores >= 1
    assert report.num_prefilled_twice == 300
    assert bench.status().counters.num_failed_restores == report.num_failed_restores


def test_a_restore_that_would_be_slower_is_not_tried_and_told(bench: Bench) -> None:
    prompt = prompt_tokens(300, seed=1)
    bench.ask(prompt)
    bench.ask(prompt_tokens(100, seed=2))
    bench.loop.parts.statistics.restore_bytes_per_s = 1.0

    report = bench.ask(prompt + prompt_tokens(50, seed=3))

    assert (report.reason, report.source) == ("restore_refused_slower", "none")
    assert (report.num_failed_restores, report.num_prefilled_twice) == (0, 300)
    assert report.num_refused_sources >= 1

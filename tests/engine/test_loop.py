"""The loop step by step, in this process: which choice pauses, and what failures leave behind."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests import models
from tests.engine.running import GREEDY, prompt_tokens
from tests.requests import make_generate

from milepost.config import EngineSettings
from milepost.engine.loop import Loop
from milepost.engine.main import make_context, make_runtime
from milepost.errors import (
    ContextFull,
    DecodeAborted,
    MilepostError,
    NativeCallFailed,
    NotSupported,
)
from milepost.libllama import Batch, Context, Model, ModelParams, open_library
from milepost.protocol.messages import (
    Cancel,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Message,
    SlotState,
    Status,
)
from milepost.protocol.sampling import SamplingParams

M = TypeVar("M")
NUM_CONTEXT = 256


@dataclass
class FakeConnection:
    """What the loop uses of `engine.connection.Connection`, without a socket."""

    inbox: list[Any] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)

    def receive(self, *, wait: bool, timeout_s: float | None = None) -> list[Any]:
        assert self.inbox or not wait, "the loop would wait for ever"
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def flush(self) -> None: ...

    def allow_abort(self, request_id: int) -> None: ...

    def forbid_abort(self) -> None: ...


class FailingContext:
    """A context whose next decodes fail with the given errors."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.errors: list[MilepostError] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, batch: Batch) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self._context.decode(batch)


@dataclass
class Bench:
    """A loop, and both sides of it."""

    loop: Loop
    connection: FakeConnection
    context: FailingContext

    def send(self, *messages: Message) -> None:
        self.connection.inbox += messages

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.step()

    def step_until(self, is_done: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_done():
                return
            self.step()
        pytest.fail("not done after 1,000 steps")

    def messages(self, kind: type[M], request_id: int) -> list[M]:
        return [
            message
            for message in self.connection.sent
            if isinstance(message, kind) and getattr(message, "request_id", None) == request_id
        ]

    def has_ended(self, request_id: int, times: int) -> bool:
        return len(self.reasons(request_id)) == times

    def reasons(self, request_id: int) -> list[str]:
        return [message.reason for message in self.messages(Finished, request_id)]

    def status(self) -> Status:
        self.send(GetStatus(status_id=1))
        self.step()
        return [message for message in self.connection.sent if isinstance(message, Status)][-1]

    def state(self, request_id: int) -> SlotState:
        (slot,) = [slot for slot in self.status().slots if slot.request_id == request_id]
        return slot.state

    @property
    def is_idle(self) -> bool:
        return all(slot.state == "idle" for slot in self.status().slots)


@pytest.fixture(scope="module")
def model(tiny_models: dict[models.Kind, Path]) -> Iterator[Model]:
    with Model(open_library(), tiny_models["full"], ModelParams()) as model:
        yield model


@pytest.fixture(scope="module")
def hybrid(tiny_models: dict[models.Kind, Path]) -> Iterator[Model]:
    with Model(open_library(), tiny_models["hybrid"], ModelParams()) as model:
        yield model


def make_bench(model: Model) -> Iterator[Bench]:
    settings = EngineSettings(ctx_size=NUM_CONTEXT, parallel=3, ubatch_size=32, threads=1)
    with make_context(model, settings, 0) as context:
        connection, failing = FakeConnection(), FailingContext(context)
        runtime = replace(make_runtime(context, settings, 0), context=failing)  # type: ignore[arg-type]
        loop = Loop(runtime, connection, settings, time.perf_counter)  # type: ignore[arg-type]
        yield Bench(loop, connection, failing)


@pytest.fixture
def bench(model: Model) -> Iterator[Bench]:
    yield from make_bench(model)


@pytest.fixture
def hybrid_bench(hybrid: Model) -> Iterator[Bench]:
    yield from make_bench(hybrid)


def generate(request_id: int, num_tokens: int, **fields: Any) -> Generate:
    tokens = prompt_tokens(num_tokens, seed=request_id)
    return make_generate(request_id, tokens, **{"sampling": GREEDY, **fields})


def test_a_newcomer_waits_for_cells_and_the_older_stream_goes_on(bench: Bench) -> None:
    bench.send(generate(1, 150, max_tokens=80))
    bench.step_until(lambda: len(bench.messages(Delta, 1)) > 5)
    bench.send(generate(2, 150, max_tokens=3))
    bench.step(10)
    assert (bench.state(1), bench.state(2)) == ("decode", "waiting")
    bench.step_until(lambda: bool(bench.reasons(2)))
    assert (bench.reasons(1), bench.reasons(2)) == (["limit"], ["limit"])
    assert bench.is_idle


def test_while_one_is_paused_nobody_else_is_admitted(bench: Bench) -> None:
    bench.send(generate(1, 150, max_tokens=20), generate(2, 150, max_tokens=20))
    bench.step_until(lambda: len(bench.messages(Delta, 1)) > 3)
    bench.send(generate(3, 5, max_tokens=2))
    status = bench.status()
    assert status.num_waiting == 1
    bench.step_until(lambda: all(bench.reasons(number) for number in (1, 2, 3)))
    assert bench.is_idle


def test_idle_slots_give_their_cells_first(bench: Bench) -> None:
    bench.send(generate(1, 100, max_tokens=1), generate(2, 100, max_tokens=1))
    bench.step_until(lambda: bool(bench.reasons(1) and bench.reasons(2)))
    bench.send(generate(3, 200, max_tokens=2))
    bench.step_until(lambda: bool(bench.reasons(3)))
    assert bench.reasons(3) == ["limit"]
    assert max(slot.num_tokens for slot in bench.status().slots) == 201


def test_a_cancel_lets_a_paused_choice_go_on(bench: Bench) -> None:
    bench.send(generate(1, 150), generate(2, 150, max_tokens=3))
    bench.step_until(lambda: len(bench.messages(Delta, 1)) > 3)
    assert bench.state(2) == "waiting"
    bench.send(Cancel(request_id=1))
    bench.step_until(lambda: bool(bench.reasons(2)))
    assert (bench.reasons(1), bench.reasons(2)) == (["cancelled"], ["limit"])


def test_a_prompt_that_has_no_room_even_alone_ends_all_of_its_choices(bench: Bench) -> None:
    bench.context.errors = [ContextFull("full")]
    bench.send(generate(1, 20, num_choices=3, max_tokens=3))
    bench.step_until(lambda: len(bench.reasons(1)) == 3)
    assert bench.reasons(1) == ["context_full"] * 3
    assert bench.is_idle


def test_a_failed_batch_fails_its_requests_and_no_others(bench: Bench) -> None:
    bench.context.errors = [NativeCallFailed("llama_decode of 20 tokens failed with -3")]
    bench.send(generate(1, 20, num_choices=2))
    bench.step()
    (failed,) = bench.messages(Failed, 1)
    assert (failed.failure.kind, "failed with -3" in failed.failure.message) == (
        "NativeCallFailed",
        True,
    )
    assert bench.messages(Finished, 1) == []
    assert bench.is_idle
    bench.send(generate(2, 20, max_tokens=2))
    bench.step_until(lambda: bool(bench.reasons(2)))
    assert bench.reasons(2) == ["limit"]


@pytest.mark.parametrize("name", ["bench", "hybrid_bench"])
def test_an_abort_that_was_not_meant_changes_no_answer(
    name: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue(name)
    texts = []
    for number in (1, 2):
        bench.send(generate(5, 100, max_tokens=10, cache_prompt=False))
        bench.step(2)
        if number == 2:
            bench.context.errors = [DecodeAborted("aborted")]
        bench.step_until(partial(bench.has_ended, 5, number))
        texts.append("".join(delta.text for delta in bench.messages(Delta, 5)))
        bench.connection.sent = [m for m in bench.connection.sent if not isinstance(m, Delta)]
    assert texts[0] == texts[1]


def test_a_finished_choice_frees_its_samplers_at_once(bench: Bench) -> None:
    bench.send(generate(1, 20, num_choices=2, max_tokens=4))
    bench.step()
    samplers = [
        weakref.ref(choice.sampler) for choice in bench.loop.parts.scheduler.running.values()
    ]
    gc.disable()
    try:
        bench.step_until(lambda: len(bench.reasons(1)) == 2)
        assert [sampler() for sampler in samplers] == [None, None]
    finally:
        gc.enable()


def test_prompt_tokens_are_counted_once_and_sampled_ones_apart(bench: Bench) -> None:
    for number in (1, 2):
        bench.send(generate(5, 40, max_tokens=6))
        bench.step_until(partial(bench.has_ended, 5, number))
    counters = bench.status().counters
    assert counters.num_prompt_tokens == 80
    assert counters.num_cached_tokens == 40  # the second prompt is known as a whole
    assert counters.num_prefilled_tokens == 40
    assert counters.num_decoded_tokens == 12


def test_a_grammar_that_is_bad_fails_alone(bench: Bench) -> None:
    bad = SamplingParams(grammar="root ::= nothing")
    bench.send(generate(1, 20, sampling=bad), generate(2, 20, max_tokens=2))
    bench.step_until(lambda: bool(bench.reasons(2)))
    assert [failed.failure.kind for failed in bench.messages(Failed, 1)] == ["InvalidRequest"]
    assert bench.is_idle


class SteppedConstraints:
    """Makes constraints until it fails, and knows which are open."""

    def __init__(self, num_made: int, error: MilepostError) -> None:
        self._left = num_made
        self._error = error
        self.is_open: list[bool] = []

    def make(self, message: Generate) -> SteppedConstraints:
        if self._left == 0:
            raise self._error
        self._left -= 1
        self.is_open.append(True)
        return self

    def close(self) -> None:
        self.is_open[self.is_open.index(True)] = False


@pytest.mark.parametrize("error", [NotSupported("no table"), NativeCallFailed("no memory")])
def test_an_error_of_a_constraint_fails_its_request_alone(
    bench: Bench, error: MilepostError
) -> None:
    constraints = SteppedConstraints(1, error)
    bench.loop.parts.admission._constraints = constraints  # type: ignore[assignment]
    bench.send(generate(1, 50, num_choices=2))
    bench.step()
    (failed,) = bench.messages(Failed, 1)
    assert failed.failure.message == str(error)
    assert constraints.is_open == [False]
    assert bench.is_idle

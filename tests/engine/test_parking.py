"""Conversations that take turns in fewer slots stay in the context, and answer as ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import RunningEngine, check_same, prompt_tokens, running_engine

KINDS: tuple[models.Kind, ...] = ("full", "recurrent", "hybrid")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> models.Kind:
    """Each memory kind for which a sequence id is cheap."""
    kind: models.Kind = request.param
    return kind


@pytest.fixture(scope="module")
def engine(tiny_models: dict[models.Kind, Path], kind: models.Kind) -> Iterator[RunningEngine]:
    """An engine with one slot and two parked ones."""
    with running_engine(tiny_models[kind], parallel=1, parked_slots=2) as engine:
        yield engine


def turn(engine: RunningEngine, fresh: RunningEngine, history: list[int], seed: int) -> str:
    """Add a message to a history and the answer to it; return where the rest came from."""
    history += prompt_tokens(40, seed=seed)
    fields = {"max_tokens": 4, "num_logprobs": 10}
    answer = engine.ask(history, **fields)
    check_same(answer, fresh.ask(history, cache_prompt=False, **fields))
    history += answer.tokens
    assert answer.end.cache is not None
    assert answer.end.cache.num_prefilled_twice == 0
    return answer.end.cache.source


def test_three_conversations_take_turns_in_one_slot(
    engine: RunningEngine, fresh_engines: Engines, kind: models.Kind
) -> None:
    fresh = fresh_engines(kind)
    histories = [prompt_tokens(300, seed=seed) for seed in (80, 81, 82)]
    for seed, history in enumerate(histories):
        turn(engine, fresh, history, seed=90 + seed)

    sources = [
        turn(engine, fresh, history, seed=100 + 10 * number + seed)
        for number in range(3)
        for seed, history in enumerate(histories)
    ]

    assert set(sources) == {"parked"}


def test_a_fourth_one_comes_back_from_memory(
    engine: RunningEngine, fresh_engines: Engines, kind: models.Kind
) -> None:
    fresh = fresh_engines(kind)
    histories = [prompt_tokens(300, seed=seed) for seed in (83, 84, 85, 86)]
    for seed, history in enumerate(histories):
        turn(engine, fresh, history, seed=140 + seed)

    assert turn(engine, fresh, histories[0], seed=150) == "ram"
    assert turn(engine, fresh, histories[3], seed=151) == "parked"


def test_a_parked_conversation_can_be_branched(
    engine: RunningEngine, fresh_engines: Engines, kind: models.Kind
) -> None:
    fresh = fresh_engines(kind)
    history = prompt_tokens(600, seed=87)
    turn(engine, fresh, history, seed=160)
    turn(engine, fresh, prompt_tokens(300, seed=88), seed=161)
    branch = history[:-4]  # without the answer

    turn(engine, fresh, branch, seed=162)

    assert turn(engine, fresh, history, seed=163) == "parked"


def test_the_whole_context_can_still_be_used(
    tiny_models: dict[models.Kind, Path], fresh_engines: Engines, kind: models.Kind
) -> None:
    with running_engine(tiny_models[kind], parallel=1, parked_slots=2, ctx_size=1024) as small:
        for seed in (89, 90, 91):
            history = prompt_tokens(900, seed=seed)
            turn(small, fresh_engines(kind), history, seed=170 + seed)

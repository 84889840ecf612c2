"""What was computed once is found again, wherever it has gone in the meantime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import Answer, RunningEngine, check_same, prompt_tokens, running_engine
from tests.engine.test_cancel import leave_in_prefill
from tests.soak import in_soak

from milepost.protocol.messages import Boundary

NUM_CROWDING = in_soak(8, 3)  # conversations of a megabyte of segments each
FIELDS: dict[str, Any] = {"max_tokens": 4, "num_logprobs": 10}
WITH_STATES: tuple[models.Kind, ...] = ("window", "recurrent", "hybrid")


@pytest.fixture(scope="module", params=models.KINDS)
def kind(request: pytest.FixtureRequest) -> models.Kind:
    """Each memory kind in turn."""
    kind: models.Kind = request.param
    return kind


@pytest.fixture(scope="module")
def engine(tiny_models: dict[models.Kind, Path], kind: models.Kind) -> Iterator[RunningEngine]:
    """An engine with one slot and no parked ones: every other conversation takes its place."""
    with running_engine(tiny_models[kind], parallel=1, parked_slots=0) as engine:
        yield engine


@pytest.fixture
def fresh(fresh_engines: Engines, kind: models.Kind) -> RunningEngine:
    """An engine of the same kind, to be asked without its cache."""
    return fresh_engines(kind)


def ask(engine: RunningEngine, fresh: RunningEngine, tokens: list[int], **fields: Any) -> Answer:
    """Return an answer after comparing it with one that reuses nothing."""
    answer = engine.ask(tokens, **FIELDS, **fields)
    check_same(answer, fresh.ask(tokens, cache_prompt=False, **FIELDS))
    return answer


def num_cached(answer: Answer) -> int:
    return answer.end.timings.cache_n


def test_a_conversation_comes_back_from_memory(engine: RunningEngine, fresh: RunningEngine) -> None:
    main = prompt_tokens(700, seed=50)
    main += ask(engine, fresh, main).tokens
    for seed in (51, 52):
        assert num_cached(ask(engine, fresh, prompt_tokens(300, seed=seed))) == 0

    answer = ask(engine, fresh, main + prompt_tokens(20, seed=53))

    assert num_cached(answer) == len(main) - 1


def test_a_second_branch_goes_on_where_the_first_one_left(
    engine: RunningEngine, fresh: RunningEngine
) -> None:
    trunk = prompt_tokens(650, seed=54)
    ask(engine, fresh, trunk + prompt_tokens(100, seed=55))
    ask(engine, fresh, trunk + prompt_tokens(100, seed=56))

    answer = ask(engine, fresh, trunk + prompt_tokens(100, seed=57))

    assert num_cached(answer) == len(trunk)


def test_a_branch_does_not_destroy_what_it_left(
    engine: RunningEngine, fresh: RunningEngine
) -> None:
    trunk = prompt_tokens(400, seed=58)
    main = trunk + prompt_tokens(400, seed=59)
    main += ask(engine, fresh, main).tokens
    ask(engine, fresh, trunk + prompt_tokens(100, seed=60))

    answer = ask(engine, fresh, main + prompt_tokens(5, seed=61))

    assert num_cached(answer) == len(main) - 1


def test_boundaries_are_where_a_later_prompt_can_go_on(
    engine: RunningEngine, fresh: RunningEngine
) -> None:
    system = prompt_tokens(300, seed=62)
    boundaries = (Boundary(pos=300, kind="system_end"),)
    ask(engine, fresh, system + prompt_tokens(400, seed=63), boundaries=boundaries)

    answer = ask(engine, fresh, system + prompt_tokens(300, seed=64), boundaries=boundaries)

    assert num_cached(answer) == len(system)


def test_a_cancelled_prefill_goes_on_after_others_came_between(
    engine: RunningEngine, fresh: RunningEngine
) -> None:
    prompt = prompt_tokens(2500, seed=65)
    engine.run(leave_in_prefill(engine.client, prompt))
    ask(engine, fresh, prompt_tokens(200, seed=66))

    assert num_cached(ask(engine, fresh, prompt)) >= 512


def test_requests_that_share_a_prefix_compute_it_once(engines: Engines, kind: models.Kind) -> None:
    system = prompt_tokens(1200, seed=67)
    engine, before = engines(kind), engines(kind).counters()
    prompts = [system + prompt_tokens(50, seed=seed) for seed in (68, 69, 70)]
    fields = {"max_tokens": 2, "boundaries": (Boundary(pos=1200, kind="system_end"),)}

    engine.ask_all(*({"tokens": prompt, **fields} for prompt in prompts))

    num_computed = engine.counters().num_prefilled_tokens - before.num_prefilled_tokens
    assert num_computed <= len(system) + 3 * 50


def test_the_same_request_twice_at_once_is_computed_once(
    engines: Engines, kind: models.Kind
) -> None:
    prompt = prompt_tokens(1500, seed=71)
    boundaries = (Boundary(pos=1400, kind="last_user"),)
    engine, before = engines(kind), engines(kind).counters()

    request = {"tokens": prompt, "boundaries": boundaries, **FIELDS}
    first, second = engine.ask_all(request, request)

    check_same(first, second)
    num_computed = engine.counters().num_prefilled_tokens - before.num_prefilled_tokens
    # The second one may come when the first is past all but the boundary.
    assert num_computed <= 1500 + 100


def test_without_memory_only_the_context_is_reused(tiny_models: dict[models.Kind, Path]) -> None:
    with running_engine(tiny_models["hybrid"], parallel=1, cache_ram=0) as engine:
        main = prompt_tokens(300, seed=72)
        main += engine.ask(main, max_tokens=4).tokens
        assert num_cached(engine.ask(main + prompt_tokens(9, seed=73), max_tokens=1)) > 0
        engine.ask(prompt_tokens(100, seed=74), max_tokens=1)
        assert num_cached(engine.ask(main + prompt_tokens(9, seed=75), max_tokens=1)) == 0


@pytest.mark.soak
def test_a_tight_budget_is_kept_and_answers_stay_right(
    tiny_models: dict[models.Kind, Path], fresh: RunningEngine, kind: models.Kind
) -> None:
    with running_engine(tiny_models[kind], parallel=1, cache_ram=1) as engine:
        for seed in range(76, 76 + NUM_CROWDING):
            prompt = prompt_tokens(900, seed=seed)
            ask(engine, fresh, prompt)
            ask(engine, fresh, prompt[:500] + prompt_tokens(100, seed=seed + 10))


def test_a_full_size_window_that_was_restored_is_not_cut(
    tiny_models: dict[models.Kind, Path], fresh_engines: Engines
) -> None:
    """Of the window's layers it has the cells that its end needs, and none before."""
    path = tiny_models["window"]
    with running_engine(path, parallel=1, parked_slots=0, swa_full=True) as engine:
        fresh = fresh_engines("window")
        main = prompt_tokens(300, seed=86)
        main += ask(engine, fresh, main).tokens
        ask(engine, fresh, prompt_tokens(100, seed=87))
        assert num_cached(ask(engine, fresh, main + prompt_tokens(9, seed=88))) == len(main) - 1

        ask(engine, fresh, main[:150] + prompt_tokens(40, seed=89))

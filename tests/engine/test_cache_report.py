"""What real engines of every memory kind say about where a prompt came from, and why not more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import models
from tests.engine.running import RunningEngine, prompt_tokens, running_engine, spec
from tests.engine.test_cancel import leave_in_prefill

from milepost.protocol.cache import CacheAction, CacheReport
from milepost.protocol.messages import Boundary

# How many conversations, and of how many tokens, take more than a megabyte. A recurrent one is a
# small state, however long it is.
CROWDS: dict[models.Kind, tuple[int, int]] = {
    "full": (12, 900),
    "window": (12, 900),
    "recurrent": (38, 900),
    "hybrid": (12, 900),
}


@pytest.fixture(scope="module", params=models.KINDS)
def kind(request: pytest.FixtureRequest) -> models.Kind:
    """Each memory kind in turn."""
    kind: models.Kind = request.param
    return kind


@pytest.fixture(scope="module")
def shared_engine(
    tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> Iterator[RunningEngine]:
    """An engine with one slot: every other conversation takes its place."""
    with running_engine(tiny_models[kind], parallel=1, parked_slots=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_memoryless(
    tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> Iterator[RunningEngine]:
    with running_engine(tiny_models[kind], parallel=1, parked_slots=0, cache_ram=0) as engine:
        yield engine


@pytest.fixture
def memoryless(shared_memoryless: RunningEngine) -> RunningEngine:
    """An engine that has nothing but its context, which is empty."""
    shared_memoryless.run(shared_memoryless.client.change_cache("clear"))
    return shared_memoryless


@pytest.fixture
def engine(shared_engine: RunningEngine) -> RunningEngine:
    """The same, without a memory of the test before."""
    shared_engine.run(shared_engine.client.change_cache("clear"))
    return shared_engine


def report_of(
    engine: RunningEngine, tokens: list[int], *boundaries: Boundary, cache_prompt: bool = True
) -> CacheReport:
    """Return the report on a prompt, after checking it against the timings."""
    end = engine.ask(tokens, max_tokens=1, boundaries=boundaries, cache_prompt=cache_prompt).end
    report = end.cache
    assert report is not None
    assert report.num_reused == end.timings.cache_n
    assert report.num_prefilled == end.timings.prompt_n == len(tokens) - report.num_reused
    assert (report.source == "none") == (report.num_reused == 0)
    return report


def test_a_first_request(engine: RunningEngine, kind: models.Kind) -> None:
    assert report_of(engine, prompt_tokens(100, seed=1)) == CacheReport(
        num_prefilled=100,
        num_prefill_chunks=1,
        num_checkpoints=0 if kind == "full" else 1,
        reason="first_request",
    )


def test_an_extension_in_the_context(memoryless: RunningEngine) -> None:
    prompt = prompt_tokens(100, seed=1)
    report_of(memoryless, prompt)

    report = report_of(memoryless, prompt + prompt_tokens(50, seed=2))

    assert (report.source, report.reason) == ("kv_cache", "extended")
    assert (report.num_reused, report.num_known) == (100, 100)
    assert report.divergence is None
    assert report.num_restored_bytes == 0


def test_an_extension_from_memory(engine: RunningEngine) -> None:
    prompt = prompt_tokens(600, seed=1)
    report_of(engine, prompt)
    report_of(engine, prompt_tokens(100, seed=2))

    report = report_of(engine, prompt + prompt_tokens(50, seed=3))

    assert (report.source, report.reason, report.num_reused) == ("ram", "extended", 600)
    assert report.num_restored_bytes > 1000
    assert report.restore_ms > 0


def test_an_edit_before_the_first_checkpoint(engine: RunningEngine, kind: models.Kind) -> None:
    prompt = prompt_tokens(300, seed=1)
    report_of(engine, prompt)
    edited = prompt[:200] + prompt_tokens(100, seed=2)

    report = report_of(engine, edited, Boundary(300, "prompt_end", 0, "user"))

    assert (report.num_known, report.divergence and report.divergence.pos) == (200, 200)
    if kind == "full":
        assert (report.num_reused, report.num_prefilled_twice) == (200, 0)
        assert report.reason == "branch"
    else:
        assert (report.num_reused, report.num_prefilled_twice) == (0, 200)
        assert report.reason == ("window_lost" if kind == "window" else "no_checkpoint_at")


def test_a_divergence_names_the_message_and_the_words_of_both_sides(engine: RunningEngine) -> None:
    prompt = prompt_tokens(300, seed=1)
    report_of(engine, prompt)
    others = [models.token_id("N"), models.token_id("e"), models.token_id("w")] * 30
    boundaries = (
        Boundary(150, "message_end", 0, "system"),
        Boundary(290, "prompt_end", 1, "user"),
    )

    found = report_of(engine, prompt[:200] + others, *boundaries).divergence

    assert found is not None
    assert (found.pos, found.message_index, found.role) == (200, 1, "user")
    assert found.prompt_excerpt == ("New" * 30)[:40]
    assert len(found.known_excerpt) == 40
    assert found.known_excerpt.isalpha()


def test_an_edit_in_the_context(memoryless: RunningEngine, kind: models.Kind) -> None:
    prompt = prompt_tokens(300, seed=1)
    report_of(memoryless, prompt)

    report = report_of(memoryless, prompt[:200] + prompt_tokens(100, seed=2))

    assert report.source == ("kv_cache" if kind == "full" else "none")
    assert report.num_known == 200


def test_a_state_from_memory_for_the_cells_of_a_slot(tiny_models: dict[models.Kind, Path]) -> None:
    with running_engine(tiny_models["hybrid"], parallel=1, parked_slots=0) as engine:
        system = prompt_tokens(5000, seed=1)  # its cells take longer to copy than to fork
        boundaries = (Boundary(5000, "system_end", 0, "system"),)
        report_of(engine, system + prompt_tokens(100, seed=2), *boundaries)

        report = report_of(engine, system + prompt_tokens(100, seed=3), *boundaries)

    assert (report.source, report.num_reused) == ("rewind", 5000)
    assert 0 < report.num_restored_bytes < 1 << 20
    assert report.reason == "branch"


def test_the_end_of_the_system_prompt_is_a_place_to_go_on(
    engine: RunningEngine, kind: models.Kind
) -> None:
    system = prompt_tokens(300, seed=1)
    boundaries = (
        Boundary(300, "system_end", 0, "system"),
        Boundary(300, "message_end", 0, "system"),
        Boundary(400, "prompt_end", 1, "user"),
    )
    first = report_of(engine, system + prompt_tokens(100, seed=2), *boundaries)

    report = report_of(engine, system + prompt_tokens(100, seed=3), *boundaries)

    assert (report.num_reused, report.reason) == (300, "branch")
    assert first.num_checkpoints == (0 if kind == "full" else 2)  # and the end of the prompt
    assert first.num_prefill_chunks == (1 if kind == "full" else 2)


def test_the_end_of_the_system_prompt_is_pinned(engine: RunningEngine, kind: models.Kind) -> None:
    boundaries = (Boundary(300, "system_end", 0, "system"),)
    report_of(engine, prompt_tokens(400, seed=1), *boundaries)

    summary = engine.run(engine.client.get_cache(10))

    pins = [pin for node in summary.nodes for pin in node.pins]
    assert pins == ([] if kind == "full" else [300])


def test_only_the_latest_system_prompts_are_pinned(
    engine: RunningEngine, kind: models.Kind
) -> None:
    for seed in range(1, 7):
        boundaries = (Boundary(100, "system_end", 0, "system"),)
        report_of(engine, prompt_tokens(150, seed=seed), *boundaries)

    summary = engine.run(engine.client.get_cache(10))

    num_pinned = sum(bool(node.pins) for node in summary.nodes)
    assert num_pinned == (0 if kind == "full" else 4)
    newest = min(summary.nodes, key=lambda node: node.idle_s)
    assert newest.pins == (() if kind == "full" else (100,))


def test_a_request_without_reuse(engine: RunningEngine) -> None:
    prompt = prompt_tokens(100, seed=1)
    report_of(engine, prompt)

    report = report_of(engine, prompt, cache_prompt=False)

    assert (report.reason, report.num_prefilled_twice) == ("cache_off", 99)


def test_what_had_to_make_room(tiny_models: dict[models.Kind, Path], kind: models.Kind) -> None:
    with running_engine(tiny_models[kind], parallel=1, parked_slots=0, cache_ram=1) as engine:
        prompt = prompt_tokens(900, seed=1)
        report_of(engine, prompt)
        crowd(engine, kind)

        report = report_of(engine, prompt + prompt_tokens(50, seed=2))

        assert (report.reason, report.num_prefilled_twice) == ("evicted", 900 - report.num_reused)
        counters = engine.counters()
        assert counters.num_evicted_checkpoints + counters.num_evicted_segments > 0


def test_without_memory_nothing_is_saved(memoryless: RunningEngine, kind: models.Kind) -> None:
    prompt = prompt_tokens(300, seed=1)
    report_of(memoryless, prompt)
    report_of(memoryless, prompt_tokens(300, seed=2))

    report = report_of(memoryless, prompt + prompt_tokens(50, seed=3))

    reasons = {"full": "not_saved", "window": "window_lost"}
    assert report.reason == reasons.get(kind, "no_checkpoint_at")


def test_choices_share_one_report(tiny_models: dict[models.Kind, Path]) -> None:
    with running_engine(tiny_models["full"], parallel=2) as engine:
        answer = engine.ask(prompt_tokens(50, seed=1), num_choices=2, max_tokens=2)
    ends = [choice.finished for choice in answer.choices]
    assert [end is not None and end.cache is not None for end in ends] == [True, False]


def test_the_totals_are_the_sums_of_the_reports(engine: RunningEngine) -> None:
    before = engine.counters()
    prompt = prompt_tokens(600, seed=1)
    reports = [
        report_of(engine, prompt),
        report_of(engine, prompt_tokens(100, seed=2)),
        report_of(engine, prompt + prompt_tokens(50, seed=3)),
        report_of(engine, prompt, cache_prompt=False),
    ]

    after = engine.counters()

    def grown(name: str) -> int:
        return int(getattr(after, name) - getattr(before, name))

    assert grown("num_ram_restores") == 1
    assert grown("num_restored_bytes") == reports[2].num_restored_bytes
    assert grown("num_prefilled_twice_tokens") == 599
    assert grown("num_saved_bytes") > 0
    assert grown("num_cached_tokens") == sum(report.num_reused for report in reports)
    assert grown("num_prefilled_tokens") == sum(report.num_prefilled for report in reports)


def test_a_cancelled_prefill_is_known_and_told(engine: RunningEngine) -> None:
    prompt = prompt_tokens(2500, seed=1)
    engine.run(leave_in_prefill(engine.client, prompt))

    report = report_of(engine, prompt)

    assert report.num_known >= report.num_reused >= 512
    assert report.reason == "extended"


def test_clearing_forgets_what_the_context_holds_too(engine: RunningEngine) -> None:
    prompt = prompt_tokens(200, seed=1)
    report_of(engine, prompt)
    changed = engine.run(engine.client.change_cache("clear"))
    assert changed.freed_bytes > 0

    assert report_of(engine, prompt).reason == "first_request"


def test_a_dropped_conversation_is_forgotten_and_its_neighbour_is_not(
    engine: RunningEngine,
) -> None:
    system = prompt_tokens(300, seed=1)
    boundaries = (Boundary(300, "system_end", 0, "system"),)
    kept, dropped = system + prompt_tokens(60, seed=2), system + prompt_tokens(60, seed=3)
    report_of(engine, kept, *boundaries)
    request_id = send(engine, dropped, *boundaries)

    changed = engine.run(engine.client.change_cache("drop", request_id))

    assert changed.found
    assert changed.freed_bytes > 0
    assert report_of(engine, kept + prompt_tokens(9, seed=4)).num_reused == len(kept)
    report = report_of(engine, dropped)
    assert (report.num_known, report.num_reused) == (300, 300)
    assert not engine.run(engine.client.change_cache("drop", request_id)).found


def test_a_pinned_conversation_outlives_the_others(
    tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> None:
    with running_engine(tiny_models[kind], parallel=1, parked_slots=0, cache_ram=1) as engine:
        prompt = prompt_tokens(900, seed=1)
        request_id = send(engine, prompt)
        assert engine.run(engine.client.change_cache("pin", request_id)).found
        crowd(engine, kind)

        assert report_of(engine, prompt + prompt_tokens(50, seed=2)).num_reused == 900


def test_a_pin_is_taken_back(engine: RunningEngine) -> None:
    request_id = send(engine, prompt_tokens(200, seed=1))

    def change(action: CacheAction) -> tuple[int, ...]:
        assert engine.run(engine.client.change_cache(action, request_id)).found
        nodes = engine.run(engine.client.get_cache(9)).nodes
        return tuple(pos for node in nodes for pos in node.pins)

    assert change("pin") == (200,)
    assert change("unpin") == ()
    assert change("unpin") == ()


def test_a_request_that_nobody_sent_cannot_be_pinned(engine: RunningEngine) -> None:
    assert not engine.run(engine.client.change_cache("pin", 1 << 40)).found


def test_the_summary_has_sizes_and_a_bounded_tree(engine: RunningEngine) -> None:
    for seed in range(1, 6):
        report_of(engine, prompt_tokens(100, seed=seed))

    summary = engine.run(engine.client.get_cache(3))

    assert summary.num_nodes == 5
    assert len(summary.nodes) == 3
    assert summary.num_tree_tokens == 500
    assert summary.num_kv_cache_tokens == 100
    assert summary.ram.segment_bytes + summary.ram.checkpoint_bytes > 0
    assert summary.counters.num_requests >= 5


def crowd(engine: RunningEngine, kind: models.Kind) -> None:
    """Ask so many other conversations that the memory does not hold all."""
    count, num_tokens = CROWDS[kind]
    for seed in range(2, 2 + count):
        report_of(engine, prompt_tokens(num_tokens, seed=seed))


def send(engine: RunningEngine, tokens: list[int], *boundaries: Boundary) -> int:
    """Let a prompt be answered; return the number under which the engine knows the request."""

    async def ask() -> int:
        wanted = spec(tokens, max_tokens=1, boundaries=boundaries)
        async with engine.client.generate(*wanted) as generation:
            async for _ in generation:
                pass
            return generation.request_id

    return engine.run(ask())

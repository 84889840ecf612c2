"""Where a prefill is cut, and where it keeps states."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from milepost.cache.placement import (
    MIN_CUT_TOKENS,
    Boundary,
    PlacementLimits,
    PlacementRequest,
    plan_prefill,
)
from milepost.kinds import BoundaryKind

KINDS: tuple[BoundaryKind, ...] = (
    *("system_end", "date", "message_end", "last_user", "prompt_end", "breakpoint"),
)


def make_request(
    end: int = 10_000,
    *boundaries: tuple[int, BoundaryKind],
    start: int = 0,
    divergences: tuple[int, ...] = (),
    limits: PlacementLimits | None = None,
) -> PlacementRequest:
    """Return a request on a hybrid model with micro-batches of 512."""
    return PlacementRequest(
        start=start,
        end=end,
        boundaries=tuple(Boundary(*boundary) for boundary in boundaries),
        divergences=divergences,
        has_states=True,
        num_batch_tokens=2048,
        num_ubatch_tokens=512,
        limits=limits or PlacementLimits(),
        wants_prompt_end=True,
    )


def count_ubatches(start: int, end: int, cuts: tuple[int, ...]) -> int:
    points = (start, *cuts, end)
    return sum(math.ceil((b - a) / 512) for a, b in zip(points, points[1:], strict=False))


def test_full_attention_is_never_cut() -> None:
    request = make_request(9000, (4000, "system_end"), divergences=(5000,))
    plan = plan_prefill(dataclasses.replace(request, has_states=False))
    assert (plan.cuts, plan.checkpoints) == ((), ())


def test_the_end_of_the_prompt_is_kept_without_a_cut() -> None:
    plan = plan_prefill(make_request(300))
    assert plan.cuts == ()
    assert plan.checkpoints == ((300, "prompt_whole"),)


def test_the_most_worthy_boundaries_are_met_exactly() -> None:
    plan = plan_prefill(make_request(9000, (4001, "system_end"), (8007, "last_user")))
    assert plan.cuts == (4001, 8007)
    assert plan.checkpoints == (
        *((4001, "system_end"), (8007, "last_user"), (9000, "prompt_whole")),
    )


def test_a_divergence_comes_before_boundaries_when_cuts_are_scarce() -> None:
    limits = PlacementLimits(extra_min=1)
    request = make_request(9216, (4200, "system_end"), divergences=(6001,), limits=limits)
    plan = plan_prefill(request)
    # 4200 is rounded down to the micro-batch that ends at 4096.
    assert plan.checkpoints == (
        *((4096, "system_end"), (6001, "divergence"), (9216, "prompt_whole")),
    )
    assert plan.num_extra_ubatches == 1


def test_a_divergence_at_the_end_of_the_system_prompt_is_kept_as_that() -> None:
    plan = plan_prefill(make_request(9000, (4001, "system_end"), divergences=(4001,)))
    assert plan.checkpoints[0] == (4001, "system_end")


def test_message_ends_are_rounded_down_to_micro_batches_after_the_cut() -> None:
    plan = plan_prefill(make_request(9216, (4000, "system_end"), (6000, "message_end")))
    assert plan.cuts == (4000, 4000 + 3 * 512)
    assert plan.num_extra_ubatches == 1


def test_the_end_before_the_generation_prompt_is_met_only_where_wanted() -> None:
    request = make_request(9000, (8995, "prompt_end"))
    assert plan_prefill(request).cuts == (8995,)
    assert plan_prefill(dataclasses.replace(request, wants_prompt_end=False)).cuts == ()


def test_no_cut_is_made_just_behind_the_start() -> None:
    plan = plan_prefill(make_request(9000, (4002, "last_user"), start=4000))
    assert plan.cuts == ()


def test_rounded_states_keep_the_minimal_step() -> None:
    ends = [(pos, "message_end") for pos in range(100, 9000, 100)]
    limits = PlacementLimits(min_step=2000)
    plan = plan_prefill(make_request(9000, *ends, limits=limits))  # type: ignore[arg-type]
    positions = [0, *(pos for pos, _ in plan.checkpoints)]
    assert all(b - a >= 2000 for a, b in zip(positions, positions[1:], strict=False))
    assert len(positions) > 3


def test_states_lie_closer_to_the_end_when_there_are_too_many_boundaries() -> None:
    ends = [(pos, "message_end") for pos in range(500, 60_000, 500)]
    limits = PlacementLimits(max_checkpoints=12)
    plan = plan_prefill(make_request(60_000, *ends, limits=limits))  # type: ignore[arg-type]
    positions = [pos for pos, _ in plan.checkpoints]
    steps = [b - a for a, b in zip(positions, positions[1:], strict=False)]
    assert 6 < len(positions) <= 12
    assert steps[0] > 5000
    assert steps[-1] <= 1024
    assert steps == sorted(steps, reverse=True)


def test_a_state_every_so_many_tokens() -> None:
    plan = plan_prefill(make_request(9000, limits=PlacementLimits(every_n_tokens=3000)))
    assert [pos for pos, _ in plan.checkpoints] == [2560, 5632, 9000]


def test_no_checkpoints_no_cuts() -> None:
    limits = PlacementLimits(max_checkpoints=0)
    plan = plan_prefill(make_request(9000, (4000, "system_end"), limits=limits))
    assert (plan.cuts, plan.checkpoints) == ((), ())


def test_states_are_kept_before_and_behind_media_at_no_cost() -> None:
    request = dataclasses.replace(make_request(3000), media=((700, 950), (1900, 2200)))
    plan = plan_prefill(request)
    assert plan.checkpoints == (
        *((700, "media"), (950, "media"), (1900, "media"), (2200, "media")),
        (3000, "prompt_whole"),
    )
    assert plan.num_extra_ubatches == 0


def test_between_two_media_side_by_side_one_state_is_kept() -> None:
    request = dataclasses.replace(make_request(3000), media=((700, 950), (951, 1201)))
    cuts = plan_prefill(request).cuts
    assert cuts == (700, 951, 1201)


def test_the_latest_media_come_first_when_states_are_scarce() -> None:
    limits = PlacementLimits(max_checkpoints=3)
    request = make_request(3000, (300, "system_end"), limits=limits)
    media = ((700, 950), (1900, 2200))
    assert plan_prefill(dataclasses.replace(request, media=media)).cuts == (300, 1900)


def test_a_boundary_in_a_media_is_rounded_to_its_begin() -> None:
    limits = PlacementLimits(max_checkpoints=20, every_n_tokens=100, min_step=1)
    request = make_request(2000, (800, "last_user"), divergences=(850,), limits=limits)
    plan = plan_prefill(dataclasses.replace(request, media=((700, 950),)))
    assert not any(700 < pos < 950 for pos in plan.cuts)
    assert dict(plan.checkpoints)[700] == "media"


def test_a_boundary_at_the_begin_of_a_media_keeps_its_name() -> None:
    request = make_request(2000, (700, "last_user"))
    plan = plan_prefill(dataclasses.replace(request, media=((700, 950),)))
    assert dict(plan.checkpoints)[700] == "last_user"


@pytest.mark.parametrize("seed", range(200))
def test_any_plan_keeps_to_its_limits(seed: int) -> None:
    rng = random.Random(seed)
    start = rng.choice((0, rng.randrange(20_000)))
    end = start + rng.randrange(1, 30_000)
    places = sorted(rng.randrange(end + 1) for _ in range(rng.randrange(40)))
    limits = PlacementLimits(
        min_step=rng.choice((0, 64, 256, 1024)),
        every_n_tokens=rng.choice((0, 0, 1000)),
        max_checkpoints=rng.choice((1, 2, 8, 32)),
        extra_min=rng.choice((0, 2, 5)),
    )
    request = make_request(
        end,
        *((pos, rng.choice(KINDS)) for pos in places),
        start=start,
        divergences=tuple(sorted({rng.randrange(end) for _ in range(rng.randrange(4))})),
        limits=limits,
    )
    plan = plan_prefill(request)

    positions = [pos for pos, _ in plan.checkpoints]
    assert list(plan.cuts) == sorted(set(plan.cuts))
    assert all(start < pos < end for pos in plan.cuts)
    assert positions == [*plan.cuts, end]
    assert len(positions) <= limits.max_checkpoints
    ideal = count_ubatches(start, end, ())
    extra = count_ubatches(start, end, plan.cuts) - ideal
    assert extra == plan.num_extra_ubatches <= max(limits.extra_min, int(0.02 * ideal))
    wanted = [pos for pos in request.divergences[-1:] if start + MIN_CUT_TOKENS <= pos]
    if limits.extra_min and limits.max_checkpoints > 1:
        assert set(wanted) <= set(plan.cuts), "the deepest divergence is met exactly"

"""What is worth least, and what goes with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from milepost.cache.eviction import (
    Candidates,
    CheckpointRecord,
    EvictionPlan,
    SegmentRecord,
    plan_eviction,
)
from milepost.cache.eviction_policies import (
    LeastRecentlyUsed,
    WorthPerByte,
    choose_thinned,
    expected_returns,
    usage_rate,
)

MANY_BYTES = 10**9


def plan(candidates: Candidates[Any, Any], num_bytes: int) -> EvictionPlan[Any, Any]:
    return plan_eviction(candidates, WorthPerByte(candidates), num_bytes)


def make_path(tip: int, *positions: int, rate: float = 1.0) -> list[CheckpointRecord[int]]:
    """Return the checkpoints of one conversation, 100 bytes each; the key is the position."""
    returns = expected_returns(positions, np.array([tip]), np.array([rate]))
    return [
        CheckpointRecord(
            key=pos,
            pos=pos,
            num_bytes=100,
            above=index - 1,
            segment=-1,
            returns=returns[index],
            hits=0.0,
        )
        for index, pos in enumerate(positions)
    ]


def join(*paths: list[CheckpointRecord[int]]) -> list[CheckpointRecord[int]]:
    """Put conversations without a common prefix beside each other."""
    joined: list[CheckpointRecord[int]] = []
    for path in paths:
        first = len(joined)
        joined += [
            dataclasses.replace(r, above=r.above + first if r.above >= 0 else -1) for r in path
        ]
    return joined


def evict_checkpoints(records: list[CheckpointRecord[int]], num_bytes: int) -> list[int]:
    return plan(Candidates(records, ()), num_bytes).checkpoints


def make_segments(*worths: float, above: tuple[int, ...] | None = None) -> list[SegmentRecord[str]]:
    """Return segments named a, b, ..., each after the one before unless told otherwise."""
    aboves = above or tuple(range(-1, len(worths) - 1))
    return [
        SegmentRecord(key="abcdef"[index], num_bytes=100, above=aboves[index], worth=worth)
        for index, worth in enumerate(worths)
    ]


def test_the_last_state_of_a_conversation_is_kept_longest() -> None:
    evicted = evict_checkpoints(make_path(8000, 2000, 4000, 6000, 8000), MANY_BYTES)
    assert evicted[-1] == 8000


def test_states_are_thinned_to_steps_that_grow_with_the_distance_from_the_tip() -> None:
    records = make_path(16_000, *range(500, 16_001, 500))
    gone = set(evict_checkpoints(records, 26 * 100))
    kept = [record.pos for record in records if record.pos not in gone]
    steps = [b - a for a, b in zip([0, *kept], kept, strict=False)]
    assert len(kept) == 6
    assert steps[0] >= 4 * steps[-1]
    assert all(a >= b for a, b in zip(steps, steps[1:], strict=False))


def test_an_old_conversation_goes_before_a_fresh_one() -> None:
    old = make_path(1000, 1000, rate=usage_rate(20))
    fresh = make_path(1001, 1001, rate=usage_rate(0))
    assert evict_checkpoints(join(fresh, old), 100) == [1000]


def test_large_things_go_before_small_ones_of_the_same_worth() -> None:
    small, large = make_path(1000, 1000), make_path(1001, 1001)
    large = [dataclasses.replace(large[0], num_bytes=1000)]
    assert evict_checkpoints(join(small, large), 1) == [1001]


def test_a_state_that_was_used_before_is_worth_more() -> None:
    records = make_path(9000, 3000, 6000, 9000)
    assert choose_thinned(records, WorthPerByte) == 0
    used = [dataclasses.replace(records[0], hits=3.0), *records[1:]]
    assert choose_thinned(used, WorthPerByte) == 1


def test_pinned_states_are_never_thinned_and_evicted_last() -> None:
    records = [dataclasses.replace(r, is_pinned=r.pos == 10) for r in make_path(9000, 10, 9000)]
    assert choose_thinned(records[:1], WorthPerByte) == -1
    assert evict_checkpoints(records, MANY_BYTES) == [9000, 10]


def test_the_place_of_a_removed_state_falls_to_the_shallower_one() -> None:
    # 5010 saves next to nothing while 5000 is there, and all of it afterwards.
    records = make_path(9000, 5000, 5010, 9000)
    first, second, _ = evict_checkpoints(records, MANY_BYTES)
    assert (first, second) in {(5000, 5010), (5010, 5000)}
    assert len(evict_checkpoints(records, 1)) == 1


def test_who_used_a_removed_state_uses_the_shallower_one() -> None:
    records = make_path(1001, 1000, 1001)
    records[0] = dataclasses.replace(records[0], hits=0.02)  # worth 24 tokens beside the other
    other = [dataclasses.replace(make_path(50, 50)[0], returns=2.0)]  # worth 100
    assert evict_checkpoints(join(records, other), 200) == [1001, 50]


def test_segments_go_from_the_end_of_a_conversation() -> None:
    found = plan(Candidates((), make_segments(1.0, 2.0, 3.0)), 200)
    assert found.segments == ["c", "b"]
    assert found.num_bytes == 200


def test_a_segment_stays_while_any_branch_goes_on_from_it() -> None:
    segments = make_segments(1.0, 5.0, 4.0, above=(-1, 0, 0))
    assert plan(Candidates((), segments), MANY_BYTES).segments == ["c", "b", "a"]


def test_a_segment_takes_along_the_states_that_need_it() -> None:
    records = [dataclasses.replace(r, segment=i) for i, r in enumerate(make_path(200, 100, 200))]
    # Nothing but the last segment with its state can go in order to free its bytes.
    kept_alive = [dataclasses.replace(r, num_bytes=1, hits=9.0) for r in records]
    found = plan(Candidates(kept_alive, make_segments(0.0, 0.0)), 101)
    assert (found.checkpoints, found.segments) == ([200], ["b"])


def test_a_segment_is_worth_what_its_states_are() -> None:
    records = join(make_path(900, 900), make_path(901, 901, rate=0.1))
    records = [dataclasses.replace(r, num_bytes=1, segment=i) for i, r in enumerate(records)]
    found = plan(Candidates(records, make_segments(0.0, 0.0, above=(-1, -1))), 101)
    assert (found.checkpoints, found.segments) == ([901], ["b"])


def test_cells_that_no_state_needs_go_first() -> None:
    records = [dataclasses.replace(r, segment=0) for r in make_path(100, 100)]
    found = plan(Candidates(records, make_segments(0.0, 0.0)), 100)
    assert (found.checkpoints, found.segments) == ([], ["b"])


def test_pinned_cells_go_last() -> None:
    segments = make_segments(1.0, 9.0, above=(-1, -1))
    segments[0] = dataclasses.replace(segments[0], is_pinned=True)
    assert plan(Candidates((), segments), MANY_BYTES).segments == ["b", "a"]


def test_no_more_goes_than_needed() -> None:
    found = plan(Candidates(make_path(900, 300, 600, 900), ()), 101)
    assert len(found.checkpoints) == 2
    assert found.num_bytes == 200


def plan_lru(candidates: Candidates[Any, Any], num_bytes: int) -> EvictionPlan[Any, Any]:
    return plan_eviction(candidates, LeastRecentlyUsed(candidates), num_bytes)


def used_at(record: CheckpointRecord[int], last_used: int) -> CheckpointRecord[int]:
    return dataclasses.replace(record, last_used=last_used)


def test_lru_removes_what_was_used_longest_ago_whatever_it_is_worth() -> None:
    records = [
        used_at(record, when)
        for record, when in zip(make_path(900, 300, 600, 900), (3, 1, 2), strict=True)
    ]
    assert plan_lru(Candidates(records, ()), MANY_BYTES).checkpoints == [600, 900, 300]
    records = [*(used_at(record, 0) for record in make_path(50, 50, rate=9.0)), *records]
    assert plan_lru(Candidates(records, ()), 100).checkpoints == [50]


def test_lru_removes_last_segments_with_what_needs_them_and_pinned_things_last() -> None:
    segments = [
        dataclasses.replace(record, last_used=when, is_pinned=when == 1)
        for record, when in zip(make_segments(1.0, 1.0, 1.0), (2, 9, 1), strict=True)
    ]
    needing = [
        dataclasses.replace(record, segment=1, last_used=10) for record in make_path(200, 200)
    ]
    found = plan_lru(Candidates(needing, segments), MANY_BYTES)
    assert (found.checkpoints, found.segments) == ([200], ["c", "b", "a"])

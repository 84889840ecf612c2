"""What the tree tells the eviction policy, seen by what is evicted."""

from __future__ import annotations

import numpy as np

from milepost.cache import CacheLimits, CacheTraits, PrefixCache
from milepost.cache.checkpoint import CheckpointKind
from milepost.kinds import MemoryKind


def make_cache(kind: MemoryKind, budget_bytes: int, max_checkpoints: int = 32) -> PrefixCache:
    limits = CacheLimits(budget_bytes, max_checkpoints)
    return PrefixCache(CacheTraits.of_kind(kind), limits)


def make_history(token: int, num_own: int = 100) -> np.ndarray:
    """Return 100 shared tokens and then some of its own."""
    return np.concatenate((np.zeros(100, np.int32), np.full(num_own, token, np.int32)))


def test_the_conversation_that_was_used_longest_ago_loses_its_state() -> None:
    cache = make_cache("recurrent", budget_bytes=25)
    for token in (1, 2, 3):
        history = make_history(token)
        cache.match(history, 0.0)
        cache.add_checkpoint(history, b"s" * 10, "reply_end", 0.0)
    assert [cache.has_checkpoint(make_history(token)) for token in (1, 2, 3)] == [False, True, True]


def test_a_match_makes_a_conversation_fresh() -> None:
    cache = make_cache("recurrent", budget_bytes=25)
    for token in (1, 2):
        cache.match(make_history(token), 0.0)
        cache.add_checkpoint(make_history(token), b"s" * 10, "reply_end", 0.0)
    cache.match(make_history(1, 101), 0.0)
    cache.match(make_history(3), 0.0)
    cache.add_checkpoint(make_history(3), b"s" * 10, "reply_end", 0.0)
    assert [cache.has_checkpoint(make_history(token)) for token in (1, 2, 3)] == [True, False, True]


def test_a_peek_makes_nothing_fresh() -> None:
    cache = make_cache("recurrent", budget_bytes=25)
    for token in (1, 2):
        cache.match(make_history(token), 0.0)
        cache.add_checkpoint(make_history(token), b"s" * 10, "reply_end", 0.0)
    assert cache.peek(make_history(1, 101)).stored[0].pos == 200
    cache.match(make_history(3), 0.0)
    cache.add_checkpoint(make_history(3), b"s" * 10, "reply_end", 0.0)
    assert [cache.has_checkpoint(make_history(token)) for token in (1, 2, 3)] == [False, True, True]
    assert cache.counters.num_hits == 0


def test_cells_without_a_state_are_worth_nothing_where_states_are_needed() -> None:
    cache = make_cache("hybrid", budget_bytes=250)
    with_state, without = np.full(100, 1, np.int32), np.full(100, 2, np.int32)
    cache.match(with_state, 0.0)
    cache.add_checkpoint(with_state, b"s", "reply_end", 0.0)
    cache.add_segment(with_state, 0, b"a" * 100, 0.0)
    for _ in range(5):
        cache.match(without, 0.0)
    cache.add_segment(without, 0, b"b" * 150, 0.0)
    assert cache.saved_until(with_state) == 100
    assert cache.saved_until(without) == 0


def test_pinned_cells_stay() -> None:
    cache = make_cache("full", budget_bytes=250)
    pinned = np.full(110, 1, np.int32)
    cache.add_segment(pinned, 0, b"a" * 110, 0.0)
    cache.pin(pinned[:105], "user")
    for token in (2, 3):
        cache.match(make_history(token), 0.0)
        cache.add_segment(make_history(token), 0, b"b" * 100, 0.0)
    assert cache.saved_until(pinned) == 110
    assert cache.statistics().num_segments == 2


def test_one_conversation_is_thinned_without_its_likely_places() -> None:
    def kept_kinds(kind: CheckpointKind) -> bool:
        cache = make_cache("recurrent", budget_bytes=1000, max_checkpoints=3)
        history = make_history(1, 900)
        cache.add_checkpoint(history[:200], b"s", "message_end", 0.0)
        cache.add_checkpoint(history[:300], b"s", kind, 0.0)
        for pos in range(400, 1000, 100):
            cache.add_checkpoint(history[:pos], b"s", "message_end", 0.0)
        return cache.has_checkpoint(history[:300])

    assert not kept_kinds("message_end")
    assert kept_kinds("last_user")
    assert kept_kinds("system_end")


def test_a_place_where_another_conversation_branches_off_is_not_thinned() -> None:
    def keeps_branching_place(*, has_branch: bool) -> bool:
        cache = make_cache("recurrent", budget_bytes=1000, max_checkpoints=3)
        history = make_history(1, 900)
        for pos in (200, 300):
            cache.add_checkpoint(history[:pos], b"s", "message_end", 0.0)
        if has_branch:
            cache.note(np.concatenate((history[:300], make_history(2))), 0.0)
        for pos in range(400, 1000, 100):
            cache.add_checkpoint(history[:pos], b"s", "message_end", 0.0)
        return cache.has_checkpoint(history[:300])

    assert keeps_branching_place(has_branch=True)
    assert not keeps_branching_place(has_branch=False)

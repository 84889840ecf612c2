"""What the engine sees of the cache: matches, reasons, limits, pins and drops."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from milepost.cache import CacheLimits, CacheTraits, PrefixCache
from milepost.kinds import MemoryKind

ROOMY = CacheLimits(budget_bytes=1 << 20)


def make_cache(kind: MemoryKind = "hybrid", limits: CacheLimits = ROOMY) -> PrefixCache:
    return PrefixCache(CacheTraits.of_kind(kind), limits)


def tokens(*runs: tuple[int, int]) -> np.ndarray:
    """Return runs of a token: (7, 3) is 7, 7, 7."""
    return np.concatenate([np.full(length, token, np.int32) for token, length in runs])


SYSTEM = (1, 100)
FIRST = tokens(SYSTEM, (2, 50))
SECOND = tokens(SYSTEM, (3, 50))


def test_nothing_is_known_at_first() -> None:
    match = make_cache().match(FIRST, 0.0)
    assert (match.num_known, match.divergences, match.stored, match.missing) == (0, (), (), "")


def test_a_segment_is_shared_where_conversations_part() -> None:
    cache = make_cache("full")
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    assert cache.saved_until(SECOND) == 100
    cache.add_segment(SECOND, 100, b"b" * 50, 1.0)
    (state,) = cache.match(tokens(SYSTEM, (3, 60)), 2.0).stored
    data = [part.segment.data or b"" for part in state.parts]
    assert [
        (part.start, part.end, held[:1]) for part, held in zip(state.parts, data, strict=True)
    ] == [
        (0, 100, b"a"),
        (100, 150, b"b"),
    ]
    assert state.pos == 150
    assert cache.num_bytes == state.num_bytes == 200


def test_a_segment_that_is_split_is_loaded_once() -> None:
    cache = make_cache("full")
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    cache.note(SECOND, 1.0)
    (state,) = cache.match(tokens(SYSTEM, (2, 60)), 2.0).stored
    assert [(part.start, part.end) for part in state.parts] == [(0, 150)]


def test_the_last_token_of_a_prompt_is_never_restored() -> None:
    cache = make_cache("full")
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    (state,) = cache.match(FIRST, 1.0).stored
    assert state.pos == 149


def test_a_state_without_its_cells_is_no_place_to_go_on() -> None:
    cache = make_cache("hybrid")
    cache.add_checkpoint(FIRST[:120], b"s", "message_end", 0.0)
    cache.add_segment(FIRST[:110], 0, b"a" * 110, 0.0)
    match = cache.match(FIRST, 1.0)
    assert match.stored == ()
    assert [checkpoint.pos for checkpoint in match.checkpoints] == [120]
    assert match.missing == "not_saved"


def test_a_segment_behind_a_gap_is_refused() -> None:
    cache = make_cache("full")
    assert not cache.add_segment(FIRST, 10, b"a" * 140, 0.0)
    assert cache.saved_until(FIRST) == 0
    assert cache.num_bytes == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("hybrid", "no_checkpoint_at"), ("recurrent", "no_checkpoint_at"), ("window", "window_lost")],
)
def test_a_place_where_no_state_was_kept_is_named(kind: MemoryKind, reason: str) -> None:
    cache = make_cache(kind)
    cache.note(FIRST, 0.0)
    if cache.traits.has_segments:
        cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    assert cache.match(SECOND, 1.0).missing == reason


def test_what_had_to_make_room_is_named() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=100))
    cache.add_checkpoint(FIRST[:100], b"s" * 60, "message_end", 0.0)
    cache.match(tokens((9, 80)), 1.0)
    cache.add_checkpoint(tokens((9, 80)), b"s" * 60, "message_end", 1.0)
    match = cache.match(FIRST, 2.0)
    assert (match.num_known, match.stored, match.missing) == (100, (), "evicted")


def test_a_lost_state_stays_lost_when_its_cells_are_stored() -> None:
    cache = make_cache("hybrid", CacheLimits(budget_bytes=1000, max_checkpoints=1))
    cache.add_checkpoint(FIRST[:100], b"s", "message_end", 0.0)
    cache.add_checkpoint(FIRST, b"s", "reply_end", 0.0)
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    assert cache.match(SECOND, 1.0).missing == "evicted"


def test_cells_that_had_to_make_room_are_named() -> None:
    cache = make_cache("full", CacheLimits(budget_bytes=200))
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    other = tokens((9, 150))
    cache.match(other, 1.0)
    cache.add_segment(other, 0, b"b" * 150, 1.0)
    assert cache.match(FIRST, 2.0).missing == "evicted"
    cache.add_segment(FIRST[:120], 0, b"a" * 50, 2.0)
    cache.check_invariants()


def test_places_where_histories_part_are_reported_with_the_prompts_own() -> None:
    cache = make_cache()
    cache.note(tokens(SYSTEM, (2, 50), (4, 50)), 0.0)
    cache.note(tokens(SYSTEM, (3, 50)), 0.0)
    match = cache.match(tokens(SYSTEM, (2, 50), (5, 50)), 1.0)
    assert match.divergences == (100, 150)
    assert match.num_known == 150


def test_what_a_prompt_replaces_is_the_latest_history_behind_a_divergence() -> None:
    cache = make_cache()
    cache.note(tokens(SYSTEM, (2, 5)), 0.0)
    assert replaced(cache, SECOND) == [2] * 5
    cache.note(SECOND, 2.0)
    cache.note(tokens(SYSTEM, (3, 10), (5, 3)), 3.0)
    assert replaced(cache, tokens(SYSTEM, (4, 5))) == [3] * 10 + [5] * 3
    assert replaced(cache, tokens(SYSTEM, (3, 50), (4, 1))) == []
    assert replaced(cache, tokens((9, 5))) == []


def replaced(cache: PrefixCache, prompt: np.ndarray) -> list[int]:
    pieces = cache.match(prompt, 9.0).replaced
    return [int(token) for piece in pieces for token in piece]


def test_what_was_replaced_does_not_change_with_the_tree() -> None:
    cache = make_cache()
    cache.note(FIRST, 0.0)
    match = cache.match(SECOND, 1.0)
    cache.note(SECOND, 1.0)
    cache.note(tokens(SYSTEM, (2, 20), (7, 3)), 2.0)
    cache.drop_all()
    assert np.concatenate(match.replaced).tolist() == [2] * 50


def test_how_much_is_known_is_told_without_a_use() -> None:
    cache = make_cache()
    cache.note(FIRST, 0.0)
    assert (cache.known_until(SECOND), cache.known_until(FIRST[:7])) == (100, 7)
    assert cache.statistics().counters.num_misses == 0


def test_a_prompt_that_goes_on_from_a_history_parts_nowhere() -> None:
    cache = make_cache()
    cache.note(FIRST, 0.0)
    assert cache.match(tokens(SYSTEM, (2, 60)), 1.0).divergences == ()


def test_media_positions_are_keys_like_any_other() -> None:
    cache = make_cache("recurrent")
    image = tokens(SYSTEM, (-77, 20))
    cache.add_checkpoint(image, b"s", "message_end", 0.0)
    assert cache.match(tokens(SYSTEM, (-77, 20), (4, 1)), 1.0).stored[0].pos == 120
    assert cache.match(tokens(SYSTEM, (-78, 20), (4, 1)), 1.0).num_known == 100


def test_states_at_one_place_replace_each_other() -> None:
    cache = make_cache("recurrent")
    cache.add_checkpoint(FIRST, b"old", "chunk", 0.0)
    (state,) = cache.match(tokens(SYSTEM, (2, 60)), 1.0).stored
    cache.note_restored(state, 1.0)
    cache.add_checkpoint(FIRST, b"newer", "reply_end", 1.0)
    cache.check_invariants()
    (state,) = cache.match(tokens(SYSTEM, (2, 60)), 2.0).stored
    assert state.checkpoint is not None
    assert (state.checkpoint.kind, state.checkpoint.num_hits) == ("reply_end", 1)
    assert cache.has_checkpoint(FIRST)
    assert cache.statistics().checkpoint_bytes == 5


def test_a_conversation_keeps_no_more_states_than_allowed() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=1000, max_checkpoints=3))
    history = tokens((1, 1000))
    for pos in range(100, 1001, 100):
        cache.add_checkpoint(history[:pos], b"s", "message_end", float(pos))
    positions = [c.pos for c in cache.match(tokens((1, 1001)), 2000.0).checkpoints]
    assert len(positions) == 3
    assert positions[0] == 1000
    assert cache.statistics().counters.num_thinned_checkpoints == 7


def test_no_checkpoints_are_kept_where_none_are_wanted() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=1000, max_checkpoints=0))
    assert not cache.add_checkpoint(FIRST, b"s", "reply_end", 0.0)
    assert not cache.has_checkpoint(FIRST)


def test_what_is_larger_than_the_budget_displaces_nothing() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=10))
    cache.add_checkpoint(FIRST, b"s" * 10, "reply_end", 0.0)
    assert not cache.add_checkpoint(SECOND, b"s" * 11, "reply_end", 0.0)
    assert cache.has_checkpoint(FIRST)


def test_old_histories_are_forgotten_when_the_tree_is_full() -> None:
    cache = make_cache(limits=CacheLimits(budget_bytes=1000, max_tree_tokens=1000))
    for token in range(20):
        cache.match(tokens((token, 100)), float(token))
        cache.note(tokens((token, 100)), float(token))
    assert cache.statistics().num_tokens <= 1000
    assert cache.match(tokens((0, 100)), 30.0).num_known == 0
    assert cache.match(tokens((19, 100)), 30.0).num_known == 100


def test_a_history_that_holds_states_is_forgotten_after_one_that_does_not() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=1000, max_tree_nodes=2))
    cache.add_checkpoint(tokens((1, 10)), b"s", "reply_end", 0.0)
    for token in (2, 3):
        cache.match(tokens((token, 10)), float(token))
        cache.note(tokens((token, 10)), float(token))
    assert cache.has_checkpoint(tokens((1, 10)))
    assert cache.match(tokens((2, 10)), 9.0).num_known == 0


def test_a_pinned_state_goes_last() -> None:
    cache = make_cache("recurrent", CacheLimits(budget_bytes=100))
    cache.add_checkpoint(FIRST, b"s" * 40, "reply_end", 0.0)
    assert cache.pin(FIRST, "user")
    for token in (5, 6, 7):
        cache.match(tokens((token, 100)), 1.0)
        cache.add_checkpoint(tokens((token, 100)), b"s" * 40, "reply_end", 1.0)
    assert cache.has_checkpoint(FIRST)
    assert cache.unpin(FIRST)
    for token in (5, 6, 7):
        cache.match(tokens((token, 100)), 1.0)
        cache.add_checkpoint(tokens((token, 100)), b"s" * 40, "reply_end", 1.0)
    assert not cache.has_checkpoint(FIRST)


def test_a_pin_stays_where_it_is_when_branches_come_and_go() -> None:
    cache = make_cache()
    cache.note(FIRST, 0.0)
    cache.pin(FIRST[:80], "user")
    cache.note(SECOND, 1.0)
    cache.drop(SECOND)
    cache.check_invariants()
    assert cache.unpin(FIRST[:80])


def test_only_known_positions_can_be_pinned() -> None:
    cache = make_cache()
    assert not cache.pin(FIRST, "user")
    assert not cache.unpin(FIRST)


def test_dropping_a_conversation_keeps_what_others_share() -> None:
    cache = make_cache("full")
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    cache.add_segment(SECOND, 100, b"b" * 50, 0.0)
    assert cache.drop(SECOND) == 50
    assert cache.saved_until(FIRST) == 150
    assert cache.match(SECOND, 1.0).num_known == 100
    assert cache.drop(FIRST) == 150
    assert cache.statistics().num_nodes == 0


def test_dropping_a_system_prompt_drops_all_that_begin_with_it() -> None:
    cache = make_cache()
    cache.note(FIRST, 0.0)
    cache.note(SECOND, 0.0)
    cache.drop(tokens(SYSTEM))
    assert cache.statistics().num_nodes == 0


def test_the_bytes_are_free_at_once() -> None:
    class Watched(bytearray):
        pass

    cache = make_cache("full")
    data = Watched(150)
    gone = weakref.ref(data)
    gc.disable()  # no cycle may have to be collected first
    try:
        cache.add_segment(FIRST, 0, data, 0.0)
        cache.note(SECOND, 0.0)
        del data
        assert gone() is not None
        cache.drop_all()
        assert gone() is None
    finally:
        gc.enable()


def test_a_match_keeps_its_bytes_when_they_are_evicted() -> None:
    cache = make_cache("full")
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    match = cache.match(tokens(SYSTEM, (2, 60)), 1.0)
    cache.drop_all()
    assert match.stored[0].parts[0].segment.data == b"a" * 150


def test_statistics_count_prompts_and_sizes() -> None:
    cache = make_cache("hybrid")
    cache.match(FIRST, 0.0)
    cache.add_checkpoint(FIRST[:140], b"s" * 7, "message_end", 0.0)
    cache.add_segment(FIRST, 0, b"a" * 150, 0.0)
    cache.match(FIRST, 1.0)
    statistics = cache.statistics()
    assert (statistics.num_nodes, statistics.num_tokens, statistics.token_bytes) == (1, 150, 600)
    assert (statistics.segment_bytes, statistics.checkpoint_bytes) == (150, 7)
    assert (statistics.counters.num_hits, statistics.counters.num_misses) == (1, 1)


def test_the_summary_shows_the_most_recent_part_of_the_tree() -> None:
    cache = make_cache("recurrent")
    cache.add_checkpoint(FIRST[:100], b"s" * 7, "system_end", 0.0)
    cache.note(FIRST, 0.0)
    cache.match(SECOND, 5.0)
    cache.note(SECOND, 5.0)
    (parent, top), (next_parent, second) = cache.recent_nodes(max_nodes=2)
    assert (parent, top.start, top.end, len(top.children)) == (-1, 0, 100, 2)
    (checkpoint,) = top.checkpoints
    assert (checkpoint.pos, checkpoint.kind) == (100, "system_end")
    assert (top.num_bytes, top.last_used.seconds) == (7, 5.0)
    assert (next_parent, second.start, second.end) == (0, 100, 150)
    assert cache.statistics().num_nodes == 3

"""The books of the slots agree with the context, also when a move cannot be made."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from milepost.engine.slots import Slot, SlotTable, choose_num_parked


@dataclass
class FakeContext:
    """Keeps the length of each sequence; cuts wherever it is told to."""

    num_context_tokens: int = 64
    has_small_window: bool = False
    can_cut: bool = True
    lengths: dict[int, int] = field(default_factory=dict)

    def pos_max(self, seq_id: int) -> int:
        return self.lengths.get(seq_id, 0) - 1

    def remove(self, seq_id: int, start: int = 0) -> bool:
        if start and not self.can_cut:
            return False
        self.lengths[seq_id] = min(start, self.lengths.get(seq_id, 0))
        return True

    def copy(self, source: int, target: int) -> None:
        self.lengths[target] = self.lengths.get(source, 0)


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.fixture
def table(context: FakeContext) -> SlotTable:
    return SlotTable(context, 3, states=None)  # type: ignore[arg-type]


@pytest.fixture
def parking(context: FakeContext) -> SlotTable:
    """A table of one slot and two parked ones."""
    return SlotTable(context, 1, states=None, num_parked=2)  # type: ignore[arg-type]


def fill(table: SlotTable, context: FakeContext, slot_id: int, num_tokens: int) -> Slot:
    slot = table[slot_id]
    table.extend(slot, np.arange(num_tokens, dtype=np.int32))
    context.lengths[slot.seq_id] = slot.num_tokens
    return slot


def check(table: SlotTable, context: FakeContext) -> None:
    for slot in table.all:
        assert context.pos_max(slot.seq_id) == slot.num_tokens - 1
    assert context.pos_max(table.spare_id) == -1


def test_a_cut_keeps_the_first_tokens(table: SlotTable, context: FakeContext) -> None:
    slot = fill(table, context, 0, 10)
    assert table.cut(slot, 10)
    assert table.cut(slot, 4)
    assert slot.held.tolist() == [0, 1, 2, 3]
    check(table, context)


@pytest.mark.parametrize("num_tokens", [0, 11])
def test_what_a_slot_does_not_hold_cannot_be_kept(
    table: SlotTable, context: FakeContext, num_tokens: int
) -> None:
    slot = fill(table, context, 0, 10)
    assert not table.cut(slot, num_tokens)
    check(table, context)


def test_a_slot_that_lost_its_cells_cannot_be_cut_or_forked(
    table: SlotTable, context: FakeContext
) -> None:
    slot = fill(table, context, 0, 10)
    table.clear_slot(slot)
    assert not table.cut(slot, 5)
    assert not table.fork(slot, table[1], 5)
    check(table, context)


def test_a_refused_cut_changes_nothing(table: SlotTable, context: FakeContext) -> None:
    context.can_cut = False
    slot = fill(table, context, 0, 10)
    assert not table.cut(slot, 5)
    assert not table.fork(slot, table[1], 5)
    assert (slot.num_tokens, table[1].num_tokens) == (10, 0)
    check(table, context)


def test_a_fork_holds_the_prefix_and_leaves_its_source(
    table: SlotTable, context: FakeContext
) -> None:
    source = fill(table, context, 0, 10)
    assert table.fork(source, table[2], 6)
    assert table[2].held.tolist() == [0, 1, 2, 3, 4, 5]
    assert source.num_tokens == 10
    check(table, context)


def test_the_spare_sequence_takes_the_place_of_a_slots_own(
    table: SlotTable, context: FakeContext
) -> None:
    slot = fill(table, context, 1, 10)
    context.lengths[table.spare_id] = 3
    old_id = slot.seq_id
    table.adopt_spare(slot, np.array([7, 8, 9], np.int32))
    assert slot.held.tolist() == [7, 8, 9]
    assert table.spare_id == old_id
    check(table, context)


def test_the_least_recently_used_idle_slot_is_evicted_first(
    table: SlotTable, context: FakeContext
) -> None:
    slots = [fill(table, context, slot_id, 5) for slot_id in range(3)]
    table.occupy(slots[0])
    for slot_id in (2, 1):
        table.occupy(slots[slot_id])
        table.release(slots[slot_id])
    assert table.num_free_cells == 64 - 15
    held = []
    while table.evict_idle():
        held.append([slot.num_tokens for slot in slots])
    assert held == [[5, 5, 0], [5, 0, 0]]
    check(table, context)


def test_a_conversation_gives_up_its_slot_and_stays(
    parking: SlotTable, context: FakeContext
) -> None:
    slot = fill(parking, context, 0, 10)
    parking.park(slot)
    assert slot.num_tokens == 0
    assert [place.num_tokens for place in parking.parked] == [10, 0]
    check(parking, context)

    parking.exchange(slot, parking.parked[0])
    assert slot.held.tolist() == list(range(10))
    check(parking, context)


def test_the_parked_conversation_that_was_not_used_for_longest_makes_way(
    parking: SlotTable, context: FakeContext
) -> None:
    for num_tokens in (10, 11, 12):
        parking.touch(fill(parking, context, 0, num_tokens))
        parking.park(parking[0])
    assert sorted(place.num_tokens for place in parking.parked) == [11, 12]
    check(parking, context)


def test_a_parked_conversation_that_was_used_since_stays(
    parking: SlotTable, context: FakeContext
) -> None:
    for num_tokens in (10, 11, 12):
        parking.touch(fill(parking, context, 0, num_tokens))
        if num_tokens == 12:
            for place in parking.parked:
                parking.touch(place)
        parking.park(parking[0])
    assert sorted(place.num_tokens for place in parking.parked) == [10, 11]
    check(parking, context)


def test_nothing_is_parked_without_a_place(table: SlotTable, context: FakeContext) -> None:
    table.park(fill(table, context, 0, 10))
    assert table[0].num_tokens == 0
    check(table, context)


def test_parked_conversations_are_evicted_too(parking: SlotTable, context: FakeContext) -> None:
    parking.park(fill(parking, context, 0, 10))
    assert parking.num_free_cells == 64 - 10
    assert parking.evict_idle()
    assert parking.num_free_cells == 64
    assert not parking.evict_idle()


@pytest.mark.parametrize(
    ("state_bytes", "budget_bytes", "has_small_window", "expected"),
    [
        (0, 0, False, 4),  # full attention: an id costs nothing
        (0, 8 << 30, True, 0),
        (1 << 20, 8 << 30, False, 4),
        (150 << 20, 8 << 30, False, 4),
        (150 << 20, 2 << 30, False, 1),
        (150 << 20, 1 << 30, False, 0),
    ],
)
def test_the_number_of_parked_conversations_follows_from_the_size_of_a_state(
    state_bytes: int, budget_bytes: int, has_small_window: bool, expected: int
) -> None:
    chosen = choose_num_parked(state_bytes, budget_bytes, has_small_window=has_small_window)
    assert chosen == expected


def test_clearing_does_not_trust_the_last_position(table: SlotTable, context: FakeContext) -> None:
    """It is -1 while one of two caches is empty, as after half of a restore."""
    context.lengths[table.spare_id] = 5
    context.pos_max = lambda seq_id: -1  # type: ignore[method-assign]
    table.clear_seq_id(table.spare_id)
    assert context.lengths[table.spare_id] == 0

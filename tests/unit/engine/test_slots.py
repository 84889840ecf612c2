"""A prompt goes where it does least harm to other conversations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milepost.cache.tree import shared_length
from milepost.engine.slots import Slot, choose_target

CAPACITY = 64


def slot(slot_id: int, num_tokens: int = 0, *, used: int = 0, busy: bool = False) -> Slot:
    tokens = np.zeros(CAPACITY, np.int32)
    return Slot(slot_id, slot_id, tokens, num_tokens, is_busy=busy, last_used=used)


def target_id(slots: Sequence[Slot], source_id: int | None, num_reused: int) -> int:
    source = None if source_id is None else slots[source_id]
    return choose_target(slots, source, num_reused).slot_id


def test_shared_length() -> None:
    left = np.array([1, 2, 3], np.int32)
    assert shared_length(left, np.array([1, 2, 4], np.int32)) == 2
    assert shared_length(left, np.array([1, 2], np.int32)) == 2
    assert shared_length(left, np.array([], np.int32)) == 0
    assert shared_length(left, left) == 3


def test_an_extension_goes_on_in_its_own_slot() -> None:
    assert target_id([slot(0, 2), slot(1, 3, used=5), slot(2)], 1, 3) == 1


def test_an_edited_conversation_is_forked_while_a_slot_is_empty() -> None:
    assert target_id([slot(0, 5, used=3), slot(1)], 0, 2) == 1


def test_an_edited_conversation_is_cut_where_a_fork_would_cost_more() -> None:
    assert target_id([slot(0, 5, used=3), slot(1, 10, used=9)], 0, 4) == 0


def test_a_side_conversation_does_not_destroy_the_main_one() -> None:
    slots = [slot(0, 40, used=9), slot(1, 3, used=1)]
    assert target_id(slots, 0, 2) == 1
    assert target_id(slots, None, 0) == 1


def test_a_busy_slot_is_never_a_target() -> None:
    assert target_id([slot(0, 3, busy=True), slot(1, 3)], 0, 3) == 1


def test_without_anything_to_reuse_the_least_recently_used_slot_is_taken() -> None:
    slots = [slot(0, 2, used=8), slot(1, 2, used=2), slot(2, 2, used=9)]
    assert target_id(slots, None, 0) == 1


def test_an_old_conversation_gives_way_however_long_it_is() -> None:
    assert target_id([slot(0, 60, used=1), slot(1, 20, used=30)], None, 0) == 0

"""A prompt goes where most of it is already there, without harm to other conversations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milepost.engine.slots import Slot, SlotChoice, choose_slot, common_prefix, num_reusable

CAPACITY = 64


def slot(slot_id: int, tokens: Sequence[int] = (), *, used: int = 0, busy: bool = False) -> Slot:
    held = np.zeros(CAPACITY, np.int32)
    held[: len(tokens)] = tokens
    return Slot(slot_id, held, num_tokens=len(tokens), is_busy=busy, last_used=used)


def choose(
    slots: Sequence[Slot], prompt: Sequence[int], *, can_cut: bool = True
) -> SlotChoice | None:
    return choose_slot(slots, np.array(prompt, np.int32), can_cut=can_cut)


def test_common_prefix() -> None:
    left = np.array([1, 2, 3], np.int32)
    assert common_prefix(left, np.array([1, 2, 4], np.int32)) == 2
    assert common_prefix(left, np.array([1, 2], np.int32)) == 2
    assert common_prefix(left, np.array([], np.int32)) == 0
    assert common_prefix(left, left) == 3


def test_the_last_prompt_token_is_always_computed() -> None:
    prompt = np.array([1, 2, 3], np.int32)
    assert num_reusable(slot(0, [1, 2, 3]), prompt, can_cut=True) == 2
    assert num_reusable(slot(0, [1, 2, 3, 4]), prompt, can_cut=True) == 2


def test_what_cannot_be_cut_is_only_extended_as_a_whole() -> None:
    prompt = np.array([1, 2, 3], np.int32)
    assert num_reusable(slot(0, [1, 2]), prompt, can_cut=False) == 2
    assert num_reusable(slot(0, [1, 9]), prompt, can_cut=False) == 0
    assert num_reusable(slot(0, [1, 2, 3]), prompt, can_cut=False) == 0
    assert num_reusable(slot(0), prompt, can_cut=False) == 0


def test_no_choice_while_all_are_busy() -> None:
    assert choose([slot(0, busy=True), slot(1, busy=True)], [1, 2]) is None


def test_an_extension_goes_on_in_its_own_slot() -> None:
    slots = [slot(0, [9, 9]), slot(1, [1, 2, 3], used=5), slot(2)]
    for can_cut in (True, False):
        assert choose(slots, [1, 2, 3, 4], can_cut=can_cut) == SlotChoice(1, 1, 3)


def test_an_edited_conversation_is_forked_while_a_slot_is_empty() -> None:
    slots = [slot(0, [1, 2, 3, 4, 5], used=3), slot(1)]
    assert choose(slots, [1, 2, 7]) == SlotChoice(0, 1, 2)


def test_an_edited_conversation_is_cut_where_a_fork_would_cost_more() -> None:
    slots = [slot(0, [1, 2, 3, 4, 5], used=3), slot(1, [9] * 10, used=9)]
    assert choose(slots, [1, 2, 3, 4, 7]) == SlotChoice(0, 0, 4)


def test_a_side_conversation_does_not_destroy_the_main_one() -> None:
    main = list(range(1, 41))
    slots = [slot(0, main, used=9), slot(1, [7, 8, 9], used=1)]
    assert choose(slots, [1, 2, 99]) == SlotChoice(0, 1, 2)
    assert choose(slots, [1, 2, 99], can_cut=False) == SlotChoice(0, 1, 0)


def test_a_busy_slot_is_a_source_but_never_a_target() -> None:
    slots = [slot(0, [1, 2, 3], busy=True), slot(1, [9, 9, 9])]
    for can_cut in (True, False):
        assert choose(slots, [1, 2, 3, 4], can_cut=can_cut) == SlotChoice(0, 1, 3)


def test_of_equal_prefixes_the_recently_used_one_is_reused() -> None:
    slots = [slot(0, [1, 2], used=1), slot(1, [1, 2], used=2)]
    assert choose(slots, [1, 2, 3]) == SlotChoice(1, 1, 2)


def test_without_anything_to_reuse_the_least_recently_used_slot_is_taken() -> None:
    slots = [slot(0, [5, 5], used=8), slot(1, [6, 6], used=2), slot(2, [7, 7], used=9)]
    chosen = choose(slots, [1, 2, 3])
    assert chosen is not None
    assert (chosen.target_id, chosen.num_reused) == (1, 0)


def test_an_old_conversation_gives_way_however_long_it_is() -> None:
    slots = [slot(0, [5] * 60, used=1), slot(1, [6] * 20, used=30)]
    chosen = choose(slots, [1, 2, 3])
    assert chosen is not None
    assert chosen.target_id == 0

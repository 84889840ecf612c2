"""Slots: the sequence ids of the context, what each one holds, and which one a prompt goes to.

`choose_slot` is pure; `SlotTable` keeps the books and applies choices to the context. The prefix
tree will take the place of `choose_slot`; until then a prompt shares what some slot holds now.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milepost.errors import StateRefused
from milepost.libllama import Context
from milepost.libllama.state import StateIO

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence id. Invariant: the context holds exactly `tokens[:num_tokens]` under it."""

    slot_id: int
    tokens: np.ndarray  # int32; capacity is the context's length
    num_tokens: int = 0
    is_busy: bool = False
    last_used: int = 0  # counts up with every use, for "least recently used"

    @property
    def held(self) -> np.ndarray:
        """The tokens that the context holds under this id."""
        return self.tokens[: self.num_tokens]


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """Where a prompt goes: `num_reused` tokens of `source_id`, continued in `target_id`."""

    source_id: int
    target_id: int
    num_reused: int


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Return the length of the longest common prefix of two int arrays."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def num_reusable(slot: Slot, prompt: np.ndarray, *, can_cut: bool) -> int:
    """Return how many tokens of a prompt need not be computed when it goes on from a slot.

    The last prompt token is always computed, because its logits are needed. A state that cannot
    be cut can only be extended as a whole.
    """
    shared = common_prefix(slot.held, prompt[:-1])
    return shared if can_cut or shared == slot.num_tokens else 0


def choose_slot(slots: Sequence[Slot], prompt: np.ndarray, *, can_cut: bool) -> SlotChoice | None:
    """Choose the idle slot for a prompt and the slot whose prefix it reuses; None if all are busy.

    The longest reuse wins. Its slot is used directly when that loses nothing; otherwise the prefix
    is forked to the idle slot that loses least: a side conversation must not destroy the main one.
    A loss counts less with every use of another slot since: an old conversation, however long, must
    not make the others share what is left.
    """
    idle = [slot for slot in slots if not slot.is_busy]
    if not idle:
        return None
    reuse = {slot.slot_id: num_reusable(slot, prompt, can_cut=can_cut) for slot in slots}
    source = max(slots, key=lambda slot: (reuse[slot.slot_id], slot.last_used))
    num_reused = reuse[source.slot_id]

    now = max(slot.last_used for slot in slots)

    def loss(slot: Slot) -> float:
        num_lost = slot.num_tokens - (num_reused if slot is source else 0)
        return num_lost / (1 + now - slot.last_used)

    def is_fork(slot: Slot) -> bool:
        return num_reused > 0 and slot is not source

    target = min(idle, key=lambda slot: (loss(slot), is_fork(slot), slot.last_used))
    return SlotChoice(source.slot_id, target.slot_id, num_reused)


class SlotTable:
    """The slots of one context."""

    def __init__(self, context: Context, num_slots: int, *, can_cut: bool) -> None:
        capacity = context.num_context_tokens
        self._context = context
        self._can_cut = can_cut
        self._clock = 0
        self.slots = [Slot(i, np.zeros(capacity, np.int32)) for i in range(num_slots)]
        # Partial states need no scratch sequence.
        self._window_states = StateIO(context, scratch=0) if context.has_small_window else None

    def __getitem__(self, slot_id: int) -> Slot:
        return self.slots[slot_id]

    @property
    def num_idle(self) -> int:
        """Number of slots that can take a request."""
        return sum(not slot.is_busy for slot in self.slots)

    def take(self, prompt: np.ndarray, *, reuse: bool) -> Slot:
        """Occupy an idle slot for a prompt; afterwards it holds the part that is reused."""
        wanted = prompt if reuse else prompt[:1]  # one token: nothing before it to be shared
        choice = choose_slot(self.slots, wanted, can_cut=self._can_cut)
        assert choice is not None, "the caller makes sure that a slot is idle"
        target = self.slots[choice.target_id]
        if choice.source_id != choice.target_id:
            self.clear(target)
            if choice.num_reused:
                self._fork(self.slots[choice.source_id], target, choice.num_reused)
        elif not self.cut(target, choice.num_reused):
            self.clear(target)
        self._occupy(target)
        return target

    def take_empty(self) -> Slot:
        """Occupy the least recently used idle slot and clear it."""
        target = min(
            (slot for slot in self.slots if not slot.is_busy), key=lambda slot: slot.last_used
        )
        self.clear(target)
        self._occupy(target)
        return target

    def fork(self, source: Slot, target: Slot) -> None:
        """Make an empty slot hold all that another one holds; the cells are shared."""
        self._fork(source, target, source.num_tokens)

    def release(self, slot: Slot) -> None:
        """Make a slot idle; it keeps its tokens for later prompts."""
        slot.is_busy = False
        self._touch(slot)

    def clear(self, slot: Slot) -> None:
        """Remove everything that a slot holds."""
        if slot.num_tokens or self._context.pos_max(slot.slot_id) >= 0:
            self._context.remove(slot.slot_id)
        slot.num_tokens = 0

    def cut(self, slot: Slot, num_tokens: int) -> bool:
        """Keep the first tokens of a slot only; False where the memory kind cannot do that."""
        if num_tokens == slot.num_tokens:
            return True
        if num_tokens == 0 or not self._context.remove(slot.slot_id, num_tokens):
            return False
        slot.num_tokens = num_tokens
        return True

    def extend(self, slot: Slot, tokens: np.ndarray) -> None:
        """Note that a batch added tokens to a slot."""
        end = slot.num_tokens + len(tokens)
        slot.tokens[slot.num_tokens : end] = tokens
        slot.num_tokens = end

    def evict_idle(self) -> bool:
        """Clear the least recently used idle slot that holds anything; False if there is none."""
        held = [slot for slot in self.slots if not slot.is_busy and slot.num_tokens]
        if not held:
            return False
        self.clear(min(held, key=lambda slot: slot.last_used))
        return True

    def _fork(self, source: Slot, target: Slot, num_tokens: int) -> None:
        self._context.copy(source.slot_id, target.slot_id)
        target.tokens[:num_tokens] = source.tokens[:num_tokens]
        target.num_tokens = source.num_tokens
        if self._window_states is not None:
            self._copy_window(self._window_states, source, target)
        if target.num_tokens and not self.cut(target, num_tokens):
            self.clear(target)

    def _copy_window(self, states: StateIO, source: Slot, target: Slot) -> None:
        """Give a fork its own cells in the cache of the sliding window.

        llama.cpp never reuses a cell that two sequences share, even when both are past it. The
        window's cache is small: shared, its cells would be used up by the next tokens.
        """
        try:
            states.write_partial(target.slot_id, states.read_partial(source.slot_id))
        except StateRefused as error:
            logger.warning("%s; the fork is computed instead", error)
            self.clear(target)

    def _occupy(self, slot: Slot) -> None:
        slot.is_busy = True
        self._touch(slot)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

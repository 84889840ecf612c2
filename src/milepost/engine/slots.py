"""Slots: what the sequences of the context hold, and the moves between them.

A slot is what a running sequence works in; it stands for a sequence id of the context. One more
sequence id is spare: a state is put together there and takes the place of a slot's own only when
it is complete, so that a state that is refused costs nothing but time.

A parked slot is one that nothing runs in. A conversation that has to give up its slot trades places
with an empty parked one: the two exchange sequence ids, nothing is copied, and its way back is the
same. So more conversations can take turns than there are slots.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Tokens
from milepost.engine.media.keys import count_positions
from milepost.errors import StateRefused
from milepost.libllama import Context
from milepost.libllama.state import StateIO

MAX_PARKED = 4  # arbitrary; more conversations come back from RAM
PARKED_SHARE = (
    8  # of the cache's budget, this part may be states of parked conversations; arbitrary
)

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a conversation.

    Invariant: `seq_id` holds exactly `tokens[:num_tokens]`, and, while it is busy with a media
    item, the first `num_partial` tokens of that.
    """

    slot_id: int
    seq_id: int  # changes when another sequence takes its place
    tokens: Tokens  # capacity is the context's length
    num_tokens: int = 0
    num_positions: int = 0  # of the context; fewer than tokens where an image takes fewer
    num_partial: int = 0
    is_busy: bool = False
    last_used: int = 0  # counts up with every use, for "least recently used"

    @property
    def held(self) -> Tokens:
        """The tokens that the context holds here; a view."""
        return self.tokens[: self.num_tokens]

    def hold(self, num_tokens: int) -> None:
        """Note that the context holds exactly the first `num_tokens` of `tokens`."""
        self.num_tokens = num_tokens
        self.num_positions = count_positions(self.held)
        self.num_partial = 0


class SlotTable:
    """The slots of one context, the parked ones, and its spare sequence."""

    def __init__(
        self, context: Context, num_slots: int, states: StateIO, num_parked: int = 0
    ) -> None:
        """Takes the sequence ids 0 to `num_slots + num_parked`, the last as the spare one."""
        capacity = context.num_context_tokens
        self._context = context
        self._states = states
        self._clock = 0
        num_all = num_slots + num_parked
        self.all = [Slot(i, i, np.zeros(capacity, np.int32)) for i in range(num_all)]
        self.slots = self.all[:num_slots]
        self.parked = self.all[num_slots:]  # never busy
        self.spare_id = num_all  # holds nothing between two steps of the loop

    def __getitem__(self, slot_id: int) -> Slot:
        return self.slots[slot_id]

    @property
    def idle(self) -> list[Slot]:
        """Slots that can take a request, the least recently used first."""
        found = [slot for slot in self.slots if not slot.is_busy]
        return sorted(found, key=lambda slot: slot.last_used)

    @property
    def resting(self) -> list[Slot]:
        """Idle and parked conversations, the least recently used first; not the empty slots."""
        found = [slot for slot in self.all if slot.num_tokens and not slot.is_busy]
        return sorted(found, key=lambda slot: slot.last_used)

    @property
    def num_idle(self) -> int:
        """Number of slots that can take a request."""
        return sum(not slot.is_busy for slot in self.slots)

    @property
    def num_free_cells(self) -> int:
        """Cells that are certainly free: those that forks share are counted for each."""
        num_used = sum(slot.num_tokens + slot.num_partial for slot in self.all)
        return self._context.num_context_tokens - num_used

    @property
    def num_cells_in_reach(self) -> int:
        """Cells that could be made free, at most: running forks may share what they hold."""
        longest = max((slot.num_tokens for slot in self.slots if slot.is_busy), default=0)
        return self._context.num_context_tokens - longest

    def occupy(self, slot: Slot) -> None:
        """Give a slot to a sequence."""
        slot.is_busy = True
        self.touch(slot)

    def release(self, slot: Slot) -> None:
        """Make a slot idle; it keeps its tokens for later prompts."""
        self.settle(slot)
        slot.is_busy = False
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        """Note that a slot was used."""
        self._clock += 1
        slot.last_used = self._clock

    def clear_slot(self, slot: Slot) -> None:
        """Remove everything that a slot holds."""
        self.clear_seq_id(slot.seq_id)
        slot.hold(0)

    def settle(self, slot: Slot) -> None:
        """Remove the part of a media item that a slot was busy with; all where that cannot be cut.

        Nothing can be kept, or taken up again, in the middle of a media item.
        """
        if slot.num_partial and (
            self._context.has_small_window or not self.cut(slot, slot.num_tokens)
        ):
            self.clear_slot(slot)

    def clear_seq_id(self, seq_id: int) -> None:
        """Remove everything that a sequence id holds.

        Always, for `pos_max` does not tell: it is -1 while one of two caches is empty, as after a
        restore that failed between the attention cells and the state.
        """
        self._context.remove(seq_id)

    def park(self, slot: Slot) -> None:
        """Empty a slot; what it held stays in the KV cache if it was used later than a parked one.

        The least recently used one has to go for it.
        """
        parked_slot = min(
            self.parked, key=lambda one: (one.num_tokens > 0, one.last_used), default=None
        )
        if (
            parked_slot is not None
            and slot.num_tokens
            and (parked_slot.num_tokens == 0 or parked_slot.last_used < slot.last_used)
        ):
            self.clear_slot(parked_slot)
            self.exchange(slot, parked_slot)
        else:
            self.clear_slot(slot)

    def exchange(self, slot: Slot, other: Slot) -> None:
        """Exchange what two slots hold, at no cost."""
        slot.seq_id, other.seq_id = other.seq_id, slot.seq_id
        slot.tokens, other.tokens = other.tokens, slot.tokens
        held = slot.num_tokens, other.num_tokens
        other.hold(held[0])
        slot.hold(held[1])
        slot.last_used, other.last_used = other.last_used, slot.last_used

    def cut(self, slot: Slot, num_tokens: int) -> bool:
        """Keep the first tokens of a slot only; False where the memory kind cannot do that."""
        if num_tokens == slot.num_tokens and not slot.num_partial:
            return True
        if not 0 < num_tokens <= slot.num_tokens:  # it may have lost its cells to another restore
            return False
        if not self._context.remove(slot.seq_id, count_positions(slot.tokens[:num_tokens])):
            return False
        slot.hold(num_tokens)
        return True

    def extend(self, slot: Slot, tokens: Tokens) -> None:
        """Note that a batch added tokens to a slot; of a media item, its last part."""
        end = slot.num_tokens + len(tokens)
        slot.tokens[slot.num_tokens : end] = tokens
        slot.num_tokens = end
        slot.num_positions += count_positions(tokens)
        slot.num_partial = 0

    def fork(self, source: Slot, target: Slot, num_tokens: int) -> bool:
        """Make an empty slot hold the first tokens of another one; attention cells are shared.

        Returns False, with the target empty, where the memory kind cannot do that.
        """
        self._context.copy(source.seq_id, target.seq_id)
        target.tokens[: source.num_tokens] = source.held
        target.hold(source.num_tokens)
        target.num_partial = source.num_partial
        if self._context.has_small_window:
            self._copy_window(source, target)
        if target.num_tokens and not self.cut(target, num_tokens):
            self.clear_slot(target)
        return target.num_tokens == num_tokens

    def adopt_spare(self, slot: Slot, tokens: Tokens) -> None:
        """Let the spare sequence, which holds `tokens`, take the place of a slot's own."""
        old_id, slot.seq_id = slot.seq_id, self.spare_id
        self.spare_id = old_id
        self.clear_seq_id(old_id)
        slot.tokens[: len(tokens)] = tokens
        slot.hold(len(tokens))

    def evict_idle(self) -> bool:
        """Clear the least recently used idle or parked conversation; False if there is none."""
        if not self.resting:
            return False
        self.clear_slot(self.resting[0])
        return True

    def _copy_window(self, source: Slot, target: Slot) -> None:
        """Give a fork its own cells in the cache of the sliding window.

        llama.cpp never reuses a cell that two sequences share, even when both are past it. The
        window's cache is small: shared, its cells would be used up by the next tokens.
        """
        try:
            self._states.write_partial(target.seq_id, self._states.read_partial(source.seq_id))
        except StateRefused as error:
            logger.warning("%s; the fork is computed instead", error)
            self.clear_slot(target)


def choose_num_parked(state_bytes: int, budget_bytes: int, *, has_small_window: bool) -> int:
    """Choose how many conversations may stay in the KV cache without a slot. Pure.

    A sequence id costs the memory of one recurrent state, whether it is used or not, and nothing
    where there is none; with a small window cache it costs a window of cells in most layers, which
    is more than a state in RAM.
    """
    if has_small_window:
        return 0
    if state_bytes == 0:
        return MAX_PARKED
    return min(MAX_PARKED, budget_bytes // PARKED_SHARE // state_bytes)


def choose_target(slots: Sequence[Slot], source: Slot | None, num_reused: int) -> Slot:
    """Choose the idle slot that loses least by taking a prompt. Pure.

    The prompt goes on from the first `num_reused` tokens of `source`, if there is one. Taking that
    slot itself loses what it holds after them; taking another one loses all that it holds. A loss
    counts less with every use of another slot since: an old conversation, however long, must not
    make the others share what is left. At least one slot must be idle.
    """
    now = max(slot.last_used for slot in slots)

    def loss(slot: Slot) -> float:
        num_lost = slot.num_tokens - (num_reused if slot is source else 0)
        return num_lost / (1 + now - slot.last_used)

    def is_fork(slot: Slot) -> bool:
        return num_reused > 0 and slot is not source

    idle = [slot for slot in slots if not slot.is_busy]
    return min(idle, key=lambda slot: (loss(slot), is_fork(slot), slot.last_used))

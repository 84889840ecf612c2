"""Write what a slot holds into the prefix cache.

Everything that is computed is written at once, at the places that the plan names and when a
sequence ends. What has been written costs nothing to drop from the context, and only what is new
since the last time is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Tokens
from milepost.cache.checkpoint import CheckpointKind
from milepost.engine.media.keys import count_positions, floor_to_block
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.slots import Slot
from milepost.errors import StateRefused
from milepost.protocol.counters import Counters

# A state of fewer tokens is not worth its bytes: computing them again takes one micro-batch.
MIN_TOKENS = 32  # arbitrary
MAX_SEGMENT_TOKENS = 4096  # arbitrary; a load costs 0.1 ms besides its bytes
# Ends of system prompts that are evicted last. More would crowd out the rest where a client puts
# something new into each, such as the time. Arbitrary.
MAX_PINNED = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """What one call of `Checkpointer.save` wrote."""

    num_bytes: int
    num_checkpoints: int  # 1: a state was copied


class Checkpointer:
    """Copies segments and states of slots into the cache."""

    def __init__(
        self, runtime: ModelRuntime, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self._states = runtime.states
        self._traits = runtime.traits
        self._cache = runtime.cache
        self._clock = clock
        self._counters = counters
        self._pinned: list[Tokens] = []  # the latest last
        limits = runtime.cache.limits
        # Without room nothing is copied, only to be refused by the cache.
        self._keeps_any = runtime.traits.can_restore and limits.budget_bytes > 0
        self._keeps_states = runtime.traits.has_states and limits.max_checkpoints > 0

    def save(self, slot: Slot, kind: CheckpointKind) -> Saved:
        """Keep the state of a slot as it is now; a state that is kept already is not copied."""
        assert slot.num_partial == 0, "in the middle of a media item"
        num_bytes = num_state_bytes = 0
        self._cache.note(slot.held, self._clock())
        if self._keeps_any and slot.num_tokens >= MIN_TOKENS:
            try:
                # The state first: cells that no state needs are the first to be evicted.
                num_state_bytes = self._save_state(slot, kind)
                num_bytes = num_state_bytes + self._save_segment(slot)
            except StateRefused as error:  # nothing was changed; the slot itself goes on
                logger.warning("a checkpoint at %d was not kept: %s", slot.num_tokens, error)
        if num_state_bytes and kind == "system_end":
            self._pin(slot.held)
        saved = Saved(num_bytes, int(num_state_bytes > 0))
        self._counters.num_saved_bytes += saved.num_bytes
        self._counters.num_checkpoints += saved.num_checkpoints
        return saved

    def _pin(self, tokens: Tokens) -> None:
        """Let what every conversation begins with go last; the latest few of them only."""
        if not self._cache.pin(tokens, "system_end"):
            return
        others = [held for held in self._pinned if not np.array_equal(held, tokens)]
        for oldest in others[: 1 - MAX_PINNED]:
            self._cache.unpin(oldest)
        self._pinned = [*others[1 - MAX_PINNED :], tokens.copy()]

    def _save_segment(self, slot: Slot) -> int:
        """Store the cells that are not stored yet, in segments that can be evicted one by one."""
        start = self._cache.saved_until(slot.held) if self._traits.has_segments else slot.num_tokens
        start = floor_to_block(slot.held, start)
        num_bytes = 0
        while start < slot.num_tokens:
            end = self._end_of_segment(slot, start)
            positions = [count_positions(slot.held[:pos]) for pos in (start, end)]
            data = self._states.read_segment(slot.seq_id, *positions)
            if not self._cache.add_segment(slot.held[:end], start, data.data, self._clock()):
                break  # the budget has no room for it, so none for what follows
            num_bytes += len(data)
            start = end
        return num_bytes

    def _end_of_segment(self, slot: Slot, start: int) -> int:
        """Return where a segment ends, at most: never within a media item."""
        end = start + MAX_SEGMENT_TOKENS
        if end >= slot.num_tokens:
            return slot.num_tokens
        rounded = floor_to_block(slot.held, end)
        while rounded <= start:  # a single media has more tokens
            end += MAX_SEGMENT_TOKENS
            rounded = floor_to_block(slot.held, min(end, slot.num_tokens))
        return rounded

    def _save_state(self, slot: Slot, kind: CheckpointKind) -> int:
        if not self._keeps_states or self._cache.has_checkpoint(slot.held):
            return 0
        read = self._states.read_partial if self._traits.has_segments else self._states.read_whole
        data = read(slot.seq_id)
        self._cache.add_checkpoint(slot.held, data.data, kind, self._clock())
        return len(data)

"""Where a prompt goes on from, and how its slot gets there.

    live        a slot holds the prefix: extended as it is, cut back, or forked
    parked      the same of a conversation that had to give up its slot, but not its cells
    live_state  a slot holds the attention cells, and the cache the state of an earlier position
    ram         segments and state come from the cache
    disk        the same, and some of them have to be read first
    none        computed from the start

Each is tried in the order of its estimated cost; one that fails is a miss, and the next is tried.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Logits, StateBytes, Tokens
from milepost.cache.checkpoint import Checkpoint
from milepost.cache.match import Match, StoredState
from milepost.cache.restore import RestoreRates, RestoreSource, choose_restore
from milepost.cache.tree import shared_length
from milepost.engine.cache_report import PrefixFacts
from milepost.engine.media.keys import (
    count_positions,
    floor_to_block,
    holds_up_to,
    is_inside,
)
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.residency import ResidencyRates, should_evict
from milepost.engine.sequence import Request
from milepost.engine.slots import Slot, SlotTable, choose_target
from milepost.engine.statistics import Statistics
from milepost.errors import StateRefused, StoredStateLost
from milepost.protocol.cache import RestoreKind

UNMATCHED_TOKEN = np.int32(np.iinfo(np.int32).min)  # in no prompt, and no media item's key
ASSUMED_DISK_BYTES_PER_S = 500e6  # until a read was measured; arbitrary
FORK_S = 0.001  # a fork or cut in the context (measured: 0.3 to 0.9 ms)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to begin a prompt."""

    source: RestoreKind
    pos: int  # tokens that need not be computed
    num_bytes: int = 0  # to be loaded
    disk_bytes: int = 0  # of these, not in memory
    slot: Slot | None = None  # for the live ones
    checkpoint: Checkpoint | None = None  # for live_state
    stored: StoredState | None = None  # for ram

    @property
    def is_extension(self) -> bool:
        """Whether a slot just goes on with what it holds."""
        slot = self.slot
        return slot is not None and not slot.is_busy and slot.num_tokens == self.pos


FROM_START = Option("none", 0)


@dataclass(frozen=True, slots=True)
class Start:
    """A slot that is ready to go on with a prompt, and how it came to be."""

    slot: Slot
    match: Match
    facts: PrefixFacts
    known_logits: Logits | None  # after the prompt, when the slot holds all of it


class Restorer:
    """Gets slots ready for prompts."""

    def __init__(
        self,
        runtime: ModelRuntime,
        slots: SlotTable,
        statistics: Statistics,
        clock: Callable[[], float],
    ) -> None:
        self._context = runtime.context
        self._states = runtime.states
        self._traits = runtime.traits
        self._cache = runtime.cache
        self._prompt_logits = runtime.prompt_logits
        self._slots = slots
        self._statistics = statistics
        self._clock = clock

    @property
    def needs_states(self) -> bool:
        """Whether a prompt can only go on from where a state was kept."""
        return self._traits.has_states

    def best_pos(self, prompt: Tokens) -> int:
        """Return how much of a prompt could be had without computing it."""
        match = self._cache.peek(prompt)
        return max((option.pos for option in self._options(prompt, match)), default=0)

    def start(self, prompt: Tokens, *, reuse: bool) -> Start:
        """Occupy an idle slot and let it hold as much of the prompt as is worth restoring."""
        started_s = self._clock()
        match = self._cache.match(prompt, started_s)
        logits = self._find_logits(prompt) if reuse else None
        options = self._all_options(prompt, match, has_logits=logits is not None) if reuse else []
        num_failed = 0
        while True:
            option, num_refused = self._choose(options, len(prompt))
            slot = choose_target(self._slots.slots, option.slot, option.pos)
            tried_s = self._clock()
            if self._apply(option, slot, prompt):
                break
            logger.warning("restoring %d tokens from %s failed", option.pos, option.source)
            options.remove(option)
            num_failed += 1
        self._slots.occupy(slot)
        if option.stored is not None:
            self._cache.note_restored(option.stored, started_s)
        ended_s = self._clock()
        if not option.disk_bytes:  # else it says more about the disk than about memory
            self._statistics.note_restore(option.num_bytes, ended_s - tried_s)
        self._cache.evict(ended_s)  # what was read, if in vain, is held in memory from now on
        facts = dataclasses.replace(
            PrefixFacts.of_match(match, is_reuse_wanted=reuse),
            num_reused=slot.num_tokens,
            source=option.source,
            num_bytes=option.num_bytes,
            restore_s=ended_s - started_s,
            num_failed=num_failed,
            num_refused=num_refused,
        )
        is_complete = slot.num_tokens == len(prompt)
        return Start(slot, match, facts, logits if is_complete else None)

    def prefetch(self, request: Request) -> None:
        """Have read from disk what a request will need that waits for a slot; once for each."""
        if request.is_prefetched or not self._cache.has_disk:
            return
        request.is_prefetched = True
        for stored in self._cache.peek(request.prompt).stored[:1]:
            self._cache.read_ahead(stored)

    def start_empty(self) -> Slot:
        """Occupy the least recently used idle slot, emptied."""
        slot = self._slots.idle[0]
        self._slots.park(slot)
        self._slots.occupy(slot)
        return slot

    def refill(self, slot: Slot, tokens: Tokens) -> None:
        """Let a busy, empty slot hold again what the cache has of a sequence that was preempted."""
        for stored in map(outside_media(tokens), self._cache.peek(tokens).stored):
            if stored is not None and self._apply(option_of(stored), slot, tokens):
                break
        self._cache.evict(self._clock())  # what was read is held in memory from now on

    def evict_costly(self, active: Slot) -> None:
        """Evict those idle conversations from the KV cache that would slow a running one down.

        Only what the prefix cache holds in full is evicted; `active` may share cells with it.
        """
        rates = ResidencyRates(
            bytes_per_token=self._traits.segment_bytes_per_token,
            expected_decode_tokens=self._statistics.decode_tokens_per_sequence,
            restore_bytes_per_s=self._statistics.restore_bytes_per_s,
        )
        for slot in self._slots.resting:
            num_foreign = slot.num_tokens - shared_length(slot.held, active.held)
            if should_evict(num_foreign, rates) and self._is_kept(slot):
                self._slots.clear_slot(slot)

    def _is_kept(self, slot: Slot) -> bool:
        held, cache = slot.held, self._cache
        return cache.saved_until(held) == slot.num_tokens and (
            not self._traits.has_states or cache.has_checkpoint(held)
        )

    def _find_logits(self, prompt: Tokens) -> Logits | None:
        """Return the logits after a prompt if they are known.

        Those on disk are only asked for where a state cannot be cut back: to compute the last token
        again takes no longer than reading them.
        """
        row = self._prompt_logits.find_logits(prompt)
        if row is not None or not self._traits.has_states:
            return row
        data = self._cache.read_logits(prompt)
        num_vocab = self._context.model.vocab.num_tokens
        if data is None or memoryview(data).nbytes != num_vocab * np.dtype(np.float32).itemsize:
            return None
        self._prompt_logits.keep_logits(prompt, np.frombuffer(data, np.float32))
        return self._prompt_logits.find_logits(prompt)

    # --- options -------------------------------------------------------------------------

    def _all_options(self, prompt: Tokens, match: Match, *, has_logits: bool) -> list[Option]:
        """Return the options, also those that leave nothing to compute if the logits are known."""
        if not has_logits:
            return self._options(prompt, match)
        # One more token, so that the last position is no longer that of the prompt.
        longer = np.append(prompt, UNMATCHED_TOKEN)
        return self._options(longer, self._cache.peek(longer))

    def _options(self, prompt: Tokens, match: Match) -> list[Option]:
        options = []
        for slot in self._slots.all:
            shared = floor_to_block(prompt, shared_length(slot.held, prompt[:-1]))
            if shared == 0:
                continue
            is_whole = shared == slot.num_tokens and not slot.num_partial
            if is_whole or self._can_cut(slot, shared):
                source: RestoreKind = "parked" if slot in self._slots.parked else "kv_cache"
                options.append(Option(source, shared, slot=slot))
            elif self._traits.has_segments:
                options += self._rewinds(slot, shared, match)
        options += [option_of(found) for found in map(outside_media(prompt), match.stored) if found]
        return options

    def _can_cut(self, slot: Slot, pos: int) -> bool:
        """Return whether a slot can go on from an earlier position.

        With --swa-full a window can, but not one that was restored: of the cells of the window's
        layers a checkpoint has those that its own position needs.
        """
        if not self._traits.can_cut:
            return False
        num_window = self._context.model.num_window_tokens
        if num_window == 0:
            return True
        first = count_positions(slot.tokens[:pos]) - num_window
        return self._context.pos_min(slot.seq_id) <= max(first, 0)

    def _rewinds(self, slot: Slot, shared: int, match: Match) -> list[Option]:
        """Return the deepest way back within the cells that a slot holds, if there is one."""
        for checkpoint in match.checkpoints:
            if checkpoint.pos <= shared:
                size = checkpoint.num_bytes
                disk_bytes = size - checkpoint.ram_bytes
                return [Option("rewind", checkpoint.pos, size, disk_bytes, slot, checkpoint)]
        return []

    def _choose(self, options: list[Option], num_prompt_tokens: int) -> tuple[Option, int]:
        """Return the option with the least estimated time until the prompt is computed.

        The second value is the number of options that reach further, but would take longer.
        """
        sources = [
            RestoreSource(
                "disk" if option.disk_bytes else "ram" if option.num_bytes else "kv_cache",
                option.pos,
                index=index,
                num_bytes=option.num_bytes,
                extra_s=0.0 if option.is_extension else FORK_S,
            )
            for index, option in enumerate(options)
        ]
        rates = RestoreRates(
            self._statistics.estimated_prefill_tokens_per_s,
            self._statistics.restore_bytes_per_s,
            self._cache.disk_bytes_per_s or ASSUMED_DISK_BYTES_PER_S,
        )
        choice = choose_restore(sources, rates, num_prompt_tokens)
        chosen = choice.source
        option = options[chosen.index] if chosen.kind != "zero" else FROM_START
        return option, len(choice.refused)

    # --- carrying out --------------------------------------------------------------------

    def _apply(self, option: Option, slot: Slot, prompt: Tokens) -> bool:
        if option.source == "none":
            self._slots.park(slot)
            return True
        try:
            if option.source in ("kv_cache", "parked"):
                return self._use_held(option, slot)
            if option.source == "rewind":
                self.rewind(option, prompt)
            else:
                self._load(option, slot, prompt)
        except (StateRefused, StoredStateLost) as error:
            logger.warning("%s", error)
            self._slots.clear_seq_id(self._slots.spare_id)
            return False
        if not holds_up_to(prompt[: option.pos], self._context.pos_max(self._slots.spare_id)):
            self._slots.clear_seq_id(self._slots.spare_id)
            return False
        if slot.num_tokens and slot is not option.slot:  # `_load` has parked it, to have its cells
            self._slots.park(slot)
        self._slots.adopt_spare(slot, prompt[: option.pos])
        return True

    def _use_held(self, option: Option, slot: Slot) -> bool:
        source = option.slot
        assert source is not None
        if source is slot:
            return self._slots.cut(slot, option.pos)
        if option.source == "parked" and option.is_extension:
            self._slots.exchange(slot, source)
            return True
        self._slots.touch(source)  # or it might have to go for what the slot holds
        self._slots.park(slot)
        return self._slots.fork(source, slot, option.pos)

    def rewind(self, option: Option, prompt: Tokens) -> None:
        """Go back to an earlier state of a live sequence: load its checkpoint beside its cells.

        The cells up to that position are shared; what is put together is in the spare sequence.
        """
        assert option.slot is not None
        assert option.checkpoint is not None
        self._cache.read_in([option.checkpoint])
        spare_id = self._slots.spare_id
        num_positions = count_positions(prompt[: option.pos])
        self._context.copy(option.slot.seq_id, spare_id, 0, num_positions)
        self._states.write_partial(spare_id, as_array(option.checkpoint.data))

    def _load(self, option: Option, slot: Slot, prompt: Tokens) -> None:
        """Put a state together from the cache, in the spare sequence."""
        assert option.stored is not None
        spare_id, stored = self._slots.spare_id, option.stored
        if stored.pos > self._slots.num_cells_in_reach:
            raise StateRefused(f"there are no cells for {stored.pos} tokens beside what runs")
        self._cache.read_in(stored.contents)
        self._slots.park(slot)
        while self._slots.num_free_cells < stored.pos and self._slots.evict_idle():
            pass
        for part in stored.parts:
            data = as_array(part.segment.data)
            start, end = (count_positions(prompt[:pos]) for pos in (part.start, part.end))
            self._states.write_segment(spare_id, data, start, end)
        if stored.checkpoint is not None:
            write = self._states.write_partial if stored.parts else self._states.write_whole
            write(spare_id, as_array(stored.checkpoint.data))


def outside_media(prompt: Tokens) -> Callable[[StoredState], StoredState | None]:
    """Return a function that shortens a stored state that ends within a media item of a prompt.

    None where nothing is left: a state at a position is good for that one only.
    """

    def shorten(stored: StoredState) -> StoredState | None:
        if not is_inside(prompt, stored.pos):
            return stored
        pos = floor_to_block(prompt, stored.pos)
        if pos == 0 or stored.checkpoint is not None:
            return None
        parts = tuple(
            dataclasses.replace(part, end=min(part.end, pos))
            for part in stored.parts
            if part.start < pos
        )
        return dataclasses.replace(stored, pos=pos, parts=parts)

    return shorten


def option_of(stored: StoredState) -> Option:
    """Return what a stored state offers."""
    source: RestoreKind = "disk" if stored.disk_bytes else "ram"
    return Option(source, stored.pos, stored.num_bytes, stored.disk_bytes, stored=stored)


def as_array(data: bytes | bytearray | memoryview | None) -> StateBytes:
    """Return bytes that are in memory as uint8 of shape (n,), without copying them."""
    assert data is not None, "it was fetched"
    return np.frombuffer(data, np.uint8)

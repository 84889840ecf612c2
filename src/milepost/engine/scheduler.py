"""Which requests run, and what each step computes of them.

Admission is first come, first served, with one exception: a request whose prefix another one is
computing right now waits until that is done, and lets others pass. Several requests with one system
prompt that arrive together compute it once, and so do two that are the same.

Where cells of the KV cache run out, what idle slots hold is evicted, and then the youngest sequence
is preempted: it loses its cells and goes on when another one has ended. A running request never
fails for lack of cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from milepost.cache.tree import shared_length
from milepost.engine.admission import Admission
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.media.keys import floor_to_block
from milepost.engine.media.prompt import MediaSpan
from milepost.engine.restoring import Restorer
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import SlotTable
from milepost.engine.statistics import Statistics
from milepost.engine.step_plan import (
    BatchLimits,
    MediaChunking,
    PendingTokens,
    StepPlan,
    plan_step,
)
from milepost.errors import MilepostError

# A prefix that another request is computing is waited for when it is at least so much longer than
# what can be had at once. Arbitrary: a fraction of a micro-batch is computed as fast as waited for.
MIN_JOIN_TOKENS = 128


class Scheduler:
    """Owns the requests that wait and the sequences that run."""

    def __init__(
        self,
        admission: Admission,
        slots: SlotTable,
        keepers: tuple[Restorer, Checkpointer],
        limits: BatchLimits,
        statistics: Statistics,
    ) -> None:
        self._admission = admission
        self._slots = slots
        self._restorer, self._checkpointer = keepers
        self._limits = limits
        self._statistics = statistics
        self._computed_media = False  # in the last step
        self.waiting: deque[Request] = deque()
        # By slot, in the order of their age, the oldest first; forking and preempted ones included.
        self.running: dict[int, Sequence] = {}
        self.waits_for_media = False  # nothing else was left to compute when it was planned

    @property
    def is_idle(self) -> bool:
        """Whether there is no request at all."""
        return not self.running and not self.waiting

    def find_sequences(self, request_id: int) -> list[Sequence]:
        """Return the running sequences of a request."""
        return [one for one in self.running.values() if one.request.request_id == request_id]

    # --- admission -----------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def withdraw_request(self, request_id: int) -> Request | None:
        """Return a request that waits no longer; None if it does not wait."""
        for request in self.waiting:
            if request.request_id == request_id:
                self.waiting.remove(request)
                return request
        return None

    def admit(self) -> Iterator[tuple[Request, MilepostError | None]]:
        """Begin as many requests as there are slots for; yield each, and why it cannot begin.

        None begins while a sequence is preempted, for that comes first.
        """
        if any(sequence.state == "preempted" for sequence in self.running.values()):
            return
        for request in list(self.waiting):
            if self._slots.num_idle < request.message.params.num_choices:
                self._restorer.prefetch(request)
                return
            if request.message.params.cache_prompt and self._waits_for_prefix(request):
                continue
            self.waiting.remove(request)
            try:
                samplers = self._admission.make_samplers(request)
            except MilepostError as error:
                yield request, error
                continue
            self._admission.begin(request, samplers)
            self.running.update((sequence.slot_id, sequence) for sequence in request.sequences)
            yield request, None

    def _waits_for_prefix(self, request: Request) -> bool:
        """Return whether a running prefill will soon hold much of this prompt.

        Where a state can only be kept on the way, that prefill is told to keep one.
        """
        first_ones = [sequence for sequence in self.running.values() if sequence.index == 0]
        computing = [sequence for sequence in first_ones if sequence.request.is_prefilling]
        if not computing:
            return False
        available = self._restorer.best_pos(request.prompt)
        for sequence in computing:
            shared = shared_length(sequence.request.prompt, request.prompt[:-1])
            shared = floor_to_block(request.prompt, shared)
            reached = self._slots[sequence.slot_id].num_tokens
            if shared - max(available, reached) < MIN_JOIN_TOKENS:
                continue
            if self._restorer.needs_states:
                sequence.request.add_checkpoint(shared, "divergence")
            return True
        return False

    # --- steps ---------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Return what the next step computes."""
        running = [one for one in self.running.values() if one.state == "running"]
        pending = [found for found in map(self._find_pending, running) if found is not None]
        rate = self._statistics.prefill_tokens_per_s
        plan = plan_step(pending, self._limits, rate, was_media=self._computed_media)
        self._computed_media = plan.media is not None
        self.waits_for_media = bool(running) and not pending
        return plan

    def find_needed_media(self) -> list[tuple[Request, list[MediaSpan]]]:
        """Return the media items that running sequences have to compute next."""
        return [
            (one.request, one.request.next_spans(self._slots[one.slot_id].num_tokens))
            for one in self.running.values()
            if one.request.spans and one.state == "running"
        ]

    def _find_pending(self, sequence: Sequence) -> PendingTokens | None:
        """Return what a sequence has to compute next; None while it waits for a media item."""
        request, slot = sequence.request, self._slots[sequence.slot_id]
        pos = slot.num_tokens
        if span := request.span_at(pos):
            if span.ref.key not in request.embeddings:
                return None
            num_missing = span.block.num_tokens - slot.num_partial
            chunking: MediaChunking = "parts" if span.block.is_causal else "whole"
            return PendingTokens(sequence.slot_id, num_missing, is_decoding=False, media=chunking)
        missing = request.end_of_chunk(pos, sequence.num_tokens) - pos
        is_decoding = missing == 1 and sequence.num_decoded > 0
        return PendingTokens(sequence.slot_id, missing, is_decoding)

    # --- cells ---------------------------------------------------------------------------

    def make_room(self) -> list[Sequence]:
        """Free cells: evict what an idle slot holds, or else preempt the youngest sequence.

        Returns the sequences that must end, because a single one fills the context. The youngest
        one is preempted even when it holds nothing: it is its prompt that does not fit, and an
        older one must not be stopped for it.
        """
        if self._slots.evict_idle():
            return []
        *others, youngest = [one for one in self.running.values() if one.state == "running"]
        if others:
            self.preempt(youngest)
            return []
        siblings = [one for one in youngest.request.sequences if one.state == "forking"]
        return [youngest, *siblings]

    def preempt(self, sequence: Sequence) -> None:
        """Take the cells of a sequence, which goes on when another one has ended."""
        slot = self._slots[sequence.slot_id]
        self._slots.settle(slot)
        self._checkpointer.save(slot, "chunk")
        self._slots.clear_slot(slot)
        sequence.state = "preempted"

    def end_sequence(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones; preempted ones go on with its cells."""
        if sequence.state == "finished":
            return
        sequence.state = "finished"
        self._statistics.note_sequence(sequence.num_decoded)
        del self.running[sequence.slot_id]
        self._slots.release(self._slots[sequence.slot_id])
        sequence.sampler.close()
        if sequence.request.is_finished:
            sequence.request.sequences.clear()  # they refer to each other, and hold whole prompts
        self._resume_preempted()

    def _resume_preempted(self) -> None:
        for sequence in self.running.values():
            if sequence.state == "preempted":
                sequence.state = "running"
                self._restorer.refill(self._slots[sequence.slot_id], sequence.known_tokens)

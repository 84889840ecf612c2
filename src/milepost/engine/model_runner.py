"""What running sequences compute next, and the batches of it.

Tokens of all sequences go into one batch; a media is computed in batches of its own. Called by the
loop, which handles what a batch that fails means.
"""

from __future__ import annotations

import dataclasses
from collections import abc

from milepost.engine.media.prompt import MediaSpan
from milepost.engine.memory_probe import MemoryTraits
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import SlotTable
from milepost.engine.step_plan import (
    BatchLimits,
    MediaChunking,
    PendingTokens,
    ScheduledTokens,
    StepPlan,
    plan_step,
)
from milepost.libllama import Batch, Context
from milepost.libllama.media_batch import MediaBatch


class ModelRunner:
    """Plans and computes one step at a time."""

    def __init__(self, context: Context, slots: SlotTable, limits: BatchLimits) -> None:
        self._context = context
        self._slots = slots
        self._limits = limits
        capacity = max(context.num_batch_tokens, len(slots.slots))
        self._batch = Batch(context.model.library, capacity)
        self._was_media = False  # computed in the last step
        self.waits_for_media = False  # nothing else was left to compute when it was planned

    def plan(self, sequences: abc.Sequence[Sequence], prefill_tokens_per_s: float) -> StepPlan:
        """Return what the next step computes, of sequences by age, the oldest first."""
        running = [sequence for sequence in sequences if sequence.state == "running"]
        pending = [found for found in map(self._find_pending, running) if found is not None]
        plan = plan_step(pending, self._limits, prefill_tokens_per_s, was_media=self._was_media)
        self._was_media = plan.media is not None
        self.waits_for_media = bool(running) and not pending
        return plan

    def decode(
        self, scheduled: abc.Sequence[ScheduledTokens], sequences: abc.Sequence[Sequence]
    ) -> None:
        """Compute the batch of tokens; raises as `Context.decode`."""
        by_slot = {sequence.slot_id: sequence for sequence in sequences}
        self._batch.clear()
        for entry in scheduled:
            slot, sequence = self._slots[entry.slot_id], by_slot[entry.slot_id]
            start, end = slot.num_tokens, slot.num_tokens + entry.num_tokens
            pos = slot.num_positions
            if entry.is_decoding:
                self._batch.add_token(int(sequence.tokens[start]), pos, slot.seq_id)
            else:
                wants_last = end == sequence.num_tokens
                self._batch.add_tokens(
                    sequence.tokens[start:end], pos, slot.seq_id, wants_last=wants_last
                )
        self._context.decode(self._batch)

    def decode_media(self, entry: ScheduledTokens, sequence: Sequence) -> None:
        """Compute the next part of a media; raises as `Context.decode`."""
        request, slot = sequence.request, self._slots[entry.slot_id]
        span = request.span_at(slot.num_tokens)
        assert span is not None
        start, end = slot.num_partial, slot.num_partial + entry.num_tokens
        batch = MediaBatch(
            self._context.model.library,
            request.embeddings[span.ref.key][span.index][start:end],
            span.block.positions(slot.num_positions)[:, start:end],
        )
        batch.fill(slot.seq_id, wants_last=slot.num_tokens + end == sequence.num_tokens)
        self._context.decode_media(batch, is_causal=span.block.is_causal)

    def note_media(self, entry: ScheduledTokens, sequence: Sequence) -> ScheduledTokens | None:
        """Note that a part of a media was computed; return all of it at its end."""
        slot = self._slots[entry.slot_id]
        span = sequence.request.span_at(slot.num_tokens)
        assert span is not None
        slot.num_partial += entry.num_tokens
        is_whole = slot.num_partial == span.block.num_tokens
        return dataclasses.replace(entry, num_tokens=slot.num_partial) if is_whole else None

    def has_media(self, entry: ScheduledTokens, sequence: Sequence) -> bool:
        """Return whether the media item that an entry is part of is still at hand."""
        span = sequence.request.span_at(self._slots[entry.slot_id].num_tokens)
        return span is not None and span.ref.key in sequence.request.embeddings

    def find_needs(
        self, sequences: abc.Iterable[Sequence]
    ) -> list[tuple[Request, list[MediaSpan]]]:
        """Return the media that running sequences have to compute next."""
        return [
            (sequence.request, self._next_spans(sequence))
            for sequence in sequences
            if sequence.request.spans and sequence.state == "running"
        ]

    def forget_media(self, request: Request) -> None:
        """Let go of the embeddings that no sequence of a request has to compute next.

        A sequence that lost its cells may need some that the others are past.
        """
        if not request.embeddings:
            return
        going_on = [c for c in request.sequences if c.state in ("running", "preempted")]
        needed = {span.ref.key for sequence in going_on for span in self._next_spans(sequence)}
        for key in request.embeddings.keys() - needed:
            del request.embeddings[key]

    def is_abortable(self, scheduled: abc.Sequence[ScheduledTokens]) -> bool:
        """Return whether the cancellation of one request may stop a batch in the middle.

        An abort loses the micro-batch that it hits, and would lose tokens of every other request in
        the batch. So only a prefill of several micro-batches that is alone is aborted; any other
        batch is computed to its end, for the same request is likely to come again
        (docs/decisions/0002).
        """
        return len(scheduled) == 1 and scheduled[0].num_tokens > self._limits.num_ubatch_tokens

    def _next_spans(self, sequence: Sequence) -> list[MediaSpan]:
        return sequence.request.next_spans(self._slots[sequence.slot_id].num_tokens)

    def _find_pending(self, sequence: Sequence) -> PendingTokens | None:
        """Return what a sequence has to compute next; None while it waits for a media."""
        request, slot = sequence.request, self._slots[sequence.slot_id]
        pos = slot.num_tokens
        if span := request.span_at(pos):
            if span.ref.key not in request.embeddings:
                return None
            num_missing = span.block.num_tokens - slot.num_partial
            kind: MediaChunking = "parts" if span.block.is_causal else "whole"
            return PendingTokens(sequence.slot_id, num_missing, is_decoding=False, media=kind)
        missing = request.end_of_chunk(pos, sequence.num_tokens) - pos
        is_decoding = missing == 1 and sequence.num_decoded > 0
        return PendingTokens(sequence.slot_id, missing, is_decoding)


def batch_limits(context: Context, traits: MemoryTraits) -> BatchLimits:
    """Return how large batches may be: one micro-batch where a state is needed to go on.

    With more than one, llama.cpp may drop cells of a small window cache that the first one still
    needs, and computes on without them (docs/decisions/0005). A recurrent state does not survive an
    abort, so its batches are not aborted, and a cancelled one should end soon
    (docs/decisions/0002).
    """
    num_ubatch_tokens = context.num_ubatch_tokens
    num_batch_tokens = num_ubatch_tokens if traits.has_states else context.num_batch_tokens
    return BatchLimits(num_batch_tokens, num_ubatch_tokens)

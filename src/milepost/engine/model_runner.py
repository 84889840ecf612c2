"""Computes what the scheduler has planned: batches of tokens, and of embeddings.

Tokens of all sequences go into one batch; a media item is computed in batches of its own. What a
batch that fails means is for the loop to decide.
"""

from __future__ import annotations

import dataclasses
from collections import abc
from collections.abc import Callable, Mapping

from milepost.engine.connection import Connection
from milepost.engine.memory_probe import MemoryTraits
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import SlotTable
from milepost.engine.statistics import Statistics
from milepost.engine.step_plan import BatchLimits, ScheduledTokens
from milepost.libllama import Batch, Context
from milepost.libllama.media_batch import MediaBatch


class ModelRunner:
    """Computes one batch at a time; `running` are the sequences by their slots."""

    def __init__(
        self,
        context: Context,
        slots: SlotTable,
        limits: BatchLimits,
        connection: Connection,
        statistics: Statistics,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._slots = slots
        self._limits = limits
        self._connection = connection
        self._statistics = statistics
        self._clock = clock
        capacity = max(context.num_batch_tokens, len(slots.slots))
        self._batch = Batch(context.model.library, capacity)

    # --- tokens --------------------------------------------------------------------------

    def compute(
        self, scheduled: abc.Sequence[ScheduledTokens], running: Mapping[int, Sequence]
    ) -> None:
        """Compute a batch of tokens; raises as `Context.decode`.

        A cancel may abort it: only where it is of one request and of several micro-batches. An
        abort loses the micro-batch that it hits, and would lose tokens of every other request in
        the batch; and what is computed to its end is likely to be asked for again
        (docs/decisions/0002).
        """
        started_s = self._clock()
        self._fill_batch(scheduled, running)
        if len(scheduled) == 1 and scheduled[0].num_tokens > self._limits.num_ubatch_tokens:
            self._decode_abortable(running[scheduled[0].slot_id].request)
        else:
            self._context.decode(self._batch)
        self._count(scheduled, started_s)

    def keep_aborted(
        self, scheduled: abc.Sequence[ScheduledTokens], running: Mapping[int, Sequence]
    ) -> None:
        """Bring the slots of an aborted batch in line with what the context still holds."""
        for entry in scheduled:
            slot, sequence = self._slots[entry.slot_id], running[entry.slot_id]
            num_kept = max(self._context.pos_max(slot.seq_id) + 1 - slot.num_positions, 0)
            end = slot.num_tokens + num_kept  # of text; the last position of an image is its first
            self._statistics.counters.num_prefilled_tokens += end - slot.num_tokens
            sequence.request.note_computed(slot.num_tokens, end)
            self._slots.extend(slot, sequence.tokens[slot.num_tokens : end])

    def _fill_batch(
        self, scheduled: abc.Sequence[ScheduledTokens], running: Mapping[int, Sequence]
    ) -> None:
        self._batch.clear_rows()
        for entry in scheduled:
            slot, sequence = self._slots[entry.slot_id], running[entry.slot_id]
            start, end = slot.num_tokens, slot.num_tokens + entry.num_tokens
            pos = slot.num_positions
            if entry.is_decoding:
                self._batch.add_token(int(sequence.tokens[start]), pos, slot.seq_id)
            else:
                wants_last = end == sequence.num_tokens
                self._batch.add_tokens(
                    sequence.tokens[start:end], pos, slot.seq_id, wants_last=wants_last
                )

    def _decode_abortable(self, owner: Request) -> None:
        try:
            self._connection.allow_abort(owner.request_id)
            self._context.decode(self._batch)
        finally:
            self._connection.forbid_abort()

    def _count(self, scheduled: abc.Sequence[ScheduledTokens], started_s: float) -> None:
        num_decoding = sum(entry.is_decoding for entry in scheduled)
        num_prefill = sum(entry.num_tokens for entry in scheduled) - num_decoding
        self._statistics.note_batch(num_prefill, num_decoding, self._clock() - started_s)

    # --- media ---------------------------------------------------------------------------

    def has_embeddings(self, entry: ScheduledTokens, sequence: Sequence) -> bool:
        """Return whether the media item that an entry is part of is still at hand."""
        span = sequence.request.span_at(self._slots[entry.slot_id].num_tokens)
        return span is not None and span.ref.key in sequence.request.embeddings

    def compute_media(self, entry: ScheduledTokens, sequence: Sequence) -> None:
        """Compute the next part of a media item; raises as `Context.decode`."""
        started_s = self._clock()
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
        self._count([entry], started_s)

    def note_media(self, entry: ScheduledTokens, sequence: Sequence) -> ScheduledTokens | None:
        """Note that a part of a media item was computed; return all of it at its end."""
        slot = self._slots[entry.slot_id]
        span = sequence.request.span_at(slot.num_tokens)
        assert span is not None
        slot.num_partial += entry.num_tokens
        is_whole = slot.num_partial == span.block.num_tokens
        return dataclasses.replace(entry, num_tokens=slot.num_partial) if is_whole else None

    def release_embeddings(self, request: Request) -> None:
        """Let go of the embeddings that no sequence of a request has to compute next.

        A sequence that was preempted may need some that the others are past.
        """
        if not request.embeddings:
            return
        going_on = [one for one in request.sequences if one.state in ("running", "preempted")]
        needed = {
            span.ref.key
            for one in going_on
            for span in request.next_spans(self._slots[one.slot_id].num_tokens)
        }
        for key in request.embeddings.keys() - needed:
            del request.embeddings[key]


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

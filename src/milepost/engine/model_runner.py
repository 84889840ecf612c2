"""What running choices compute next, and the batches of it.

Tokens of all choices go into one batch; a media is computed in batches of its own. Called by the
loop, which handles what a batch that fails means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from milepost.engine.media.prompt import MediaSpan
from milepost.engine.memory_probe import MemoryTraits
from milepost.engine.sequence import Choice, Request
from milepost.engine.slots import SlotTable
from milepost.engine.step_plan import BatchLimits, MediaWork, Share, StepPlan, Work, plan_step
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

    def plan(self, choices: Sequence[Choice], prefill_tokens_per_s: float) -> StepPlan:
        """Return what the next step computes, of choices by age, the oldest first."""
        running = [choice for choice in choices if choice.state == "running"]
        works = [work for work in map(self._find_work, running) if work is not None]
        plan = plan_step(works, self._limits, prefill_tokens_per_s, was_media=self._was_media)
        self._was_media = plan.media is not None
        self.waits_for_media = bool(running) and not works
        return plan

    def decode(self, shares: Sequence[Share], choices: Sequence[Choice]) -> None:
        """Compute the batch of tokens; raises as `Context.decode`."""
        by_slot = {choice.slot_id: choice for choice in choices}
        self._batch.clear()
        for share in shares:
            slot, choice = self._slots[share.slot_id], by_slot[share.slot_id]
            start, end = slot.num_tokens, slot.num_tokens + share.num_tokens
            pos = slot.num_positions
            if share.is_decoding:
                self._batch.add_token(int(choice.tokens[start]), pos, slot.seq_id)
            else:
                wants_last = end == choice.num_tokens
                self._batch.add_tokens(
                    choice.tokens[start:end], pos, slot.seq_id, wants_last=wants_last
                )
        self._context.decode(self._batch)

    def decode_media(self, share: Share, choice: Choice) -> None:
        """Compute the next part of a media; raises as `Context.decode`."""
        request, slot = choice.request, self._slots[share.slot_id]
        span = request.span_at(slot.num_tokens)
        assert span is not None
        start, end = slot.num_partial, slot.num_partial + share.num_tokens
        batch = MediaBatch(
            self._context.model.library,
            request.embeddings[span.ref.key][span.index][start:end],
            span.piece.positions(slot.num_positions)[:, start:end],
        )
        batch.fill(slot.seq_id, wants_last=slot.num_tokens + end == choice.num_tokens)
        self._context.decode_media(batch, is_causal=span.piece.is_causal)

    def note_media(self, share: Share, choice: Choice) -> Share | None:
        """Note that a part of a media was computed; return the share of all of it at its end."""
        slot = self._slots[share.slot_id]
        span = choice.request.span_at(slot.num_tokens)
        assert span is not None
        slot.num_partial += share.num_tokens
        is_whole = slot.num_partial == span.piece.num_tokens
        return dataclasses.replace(share, num_tokens=slot.num_partial) if is_whole else None

    def has_media(self, share: Share, choice: Choice) -> bool:
        """Return whether the media that a share is of is still at hand."""
        span = choice.request.span_at(self._slots[share.slot_id].num_tokens)
        return span is not None and span.ref.key in choice.request.embeddings

    def find_needs(self, choices: Iterable[Choice]) -> list[tuple[Request, list[MediaSpan]]]:
        """Return the media that running choices have to compute next."""
        return [
            (choice.request, self._next_spans(choice))
            for choice in choices
            if choice.request.spans and choice.state == "running"
        ]

    def forget_media(self, request: Request) -> None:
        """Let go of the embeddings that no choice of a request has to compute next.

        A choice that lost its cells may need some that the others are past.
        """
        if not request.embeddings:
            return
        going_on = [c for c in request.choices if c.state in ("running", "paused")]
        needed = {span.ref.key for choice in going_on for span in self._next_spans(choice)}
        for key in request.embeddings.keys() - needed:
            del request.embeddings[key]

    def is_abortable(self, shares: Sequence[Share]) -> bool:
        """Return whether the cancellation of one request may stop a batch in the middle.

        An abort loses the micro-batch that it hits, and would lose tokens of every other request in
        the batch. So only a prefill of several micro-batches that is alone is aborted; any other
        batch is computed to its end, for the same request is likely to come again
        (docs/decisions/0002).
        """
        return len(shares) == 1 and shares[0].num_tokens > self._limits.num_ubatch_tokens

    def _next_spans(self, choice: Choice) -> list[MediaSpan]:
        return choice.request.next_spans(self._slots[choice.slot_id].num_tokens)

    def _find_work(self, choice: Choice) -> Work | None:
        """Return what a choice has to compute next; None while it waits for a media."""
        request, slot = choice.request, self._slots[choice.slot_id]
        pos = slot.num_tokens
        if span := request.span_at(pos):
            if span.ref.key not in request.embeddings:
                return None
            num_missing = span.piece.num_tokens - slot.num_partial
            kind: MediaWork = "parts" if span.piece.is_causal else "whole"
            return Work(choice.slot_id, num_missing, is_decoding=False, media=kind)
        missing = request.end_of_chunk(pos, choice.num_tokens) - pos
        is_decoding = missing == 1 and choice.num_decoded > 0
        return Work(choice.slot_id, missing, is_decoding)


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

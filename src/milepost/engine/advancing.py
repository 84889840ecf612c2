"""What follows from a batch that was computed: slots hold more, states are kept, tokens sampled."""

from __future__ import annotations

from milepost.engine.finishing import Finisher
from milepost.engine.parts import EngineParts
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import Slot
from milepost.engine.step_plan import ScheduledTokens
from milepost.protocol.messages import PromptProgress


class Advancer:
    """Takes sequences on by what was computed of them."""

    def __init__(self, parts: EngineParts, finisher: Finisher) -> None:
        self._context = parts.runtime.context
        self._prompt_logits = parts.runtime.prompt_logits
        self._slots = parts.slots
        self._scheduler = parts.scheduler
        self._runner = parts.runner
        self._checkpointer = parts.checkpointer
        self._decoder = parts.decoder
        self._finisher = finisher
        self._connection = parts.connection
        self._clock = parts.clock

    def advance(self, scheduled: list[ScheduledTokens]) -> None:
        """Note what a batch computed, keep states, and sample where a sequence is complete."""
        row = -1
        for entry in scheduled:
            row += entry.num_tokens
            self._advance_one(entry, row)

    def advance_media(self, entry: ScheduledTokens) -> None:
        """Do the same for a media item when its last part was computed."""
        sequence = self._scheduler.running[entry.slot_id]
        if whole := self._runner.note_media(entry, sequence):
            self._advance_one(whole, entry.num_tokens - 1)

    def start(self, request: Request) -> None:
        """Sample at once where nothing of a prompt has to be computed."""
        self._send_progress(request)
        if request.known_logits is None:
            return
        for sequence in self._end_prefill(request.sequences[0]):
            if reason := self._decoder.step_from(sequence, request.known_logits):
                self._finisher.finish(sequence, reason)

    def _advance_one(self, entry: ScheduledTokens, row: int) -> None:
        """Do it for one entry, whose last token has this row in the batch."""
        slot, sequence = self._slots[entry.slot_id], self._scheduler.running[entry.slot_id]
        request = sequence.request
        end = slot.num_tokens + entry.num_tokens
        request.note_computed(slot.num_tokens, end)
        self._slots.extend(slot, sequence.tokens[slot.num_tokens : end])
        self._runner.release_embeddings(request)
        if request.is_prefilling:
            self._keep_state(request, slot)
            self._send_progress(request)
        if end < sequence.num_tokens:
            return
        ready = [sequence]
        if request.is_prefilling:
            self._prompt_logits.keep_logits(request.prompt, self._context.logits(row))
            ready = self._end_prefill(sequence)
        for each in ready:
            if reason := self._decoder.step(each, row):
                self._finisher.finish(each, reason)

    def _keep_state(self, request: Request, slot: Slot) -> None:
        """Make a checkpoint where the plan of the prefill says so."""
        if kind := request.checkpoints.pop(slot.num_tokens, None):
            request.num_checkpoints += self._checkpointer.save(slot, kind).num_checkpoints

    def _end_prefill(self, first: Sequence) -> list[Sequence]:
        """Fork the other sequences of a request from the first; return all of them."""
        request = first.request
        request.prefill_ended_s = self._clock()
        for sequence in request.sequences:
            if sequence.state == "forking":
                source, target = self._slots[first.slot_id], self._slots[sequence.slot_id]
                self._slots.fork(source, target, source.num_tokens)
                sequence.state = "running"
        return [sequence for sequence in request.sequences if sequence.state == "running"]

    def _send_progress(self, request: Request) -> None:
        """Tell the client how far the prefill is, if it wants to know."""
        if request.message.params.wants_progress:
            self._connection.send(
                PromptProgress(
                    request_id=request.request_id,
                    num_tokens=len(request.prompt),
                    num_cached=request.num_cached,
                    num_processed=self._slots[request.sequences[0].slot_id].num_tokens,
                    elapsed_ms=1000 * (self._clock() - request.prefill_started_s),
                )
            )

"""How sequences end: the last message of each, what is kept of it, and its slot.

A sequence ends when its reply is complete, its request is cancelled, or a batch has failed.
"""

from __future__ import annotations

from milepost.cache.checkpoint import CheckpointKind
from milepost.engine.decoding import cancelled_message
from milepost.engine.parts import EngineParts
from milepost.engine.sequence import Request, Sequence
from milepost.errors import MilepostError
from milepost.protocol.failure import describe_failure
from milepost.protocol.messages import Failed, FinishReason


class Finisher:
    """Ends sequences, and requests that fail."""

    def __init__(self, parts: EngineParts) -> None:
        self._scheduler = parts.scheduler
        self._slots = parts.slots
        self._decoder = parts.decoder
        self._checkpointer = parts.checkpointer
        self._persister = parts.persister
        self._cache_control = parts.cache_control
        self._connection = parts.connection

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence; what its slot holds is kept."""
        self._decoder.finish(sequence, reason)
        self._connection.flush()  # the client need not wait for the copy
        kind: CheckpointKind = "cancelled" if reason == "cancelled" else "reply_end"
        request, slot = sequence.request, self._slots[sequence.slot_id]
        held = slot.held.copy()  # states of it are kept, even where the slot itself is cleared
        self._slots.settle(slot)
        self._checkpointer.save(slot, kind)
        self._persister.note(held, len(request.prompt))
        if sequence.index == 0:
            self._cache_control.note_request(request.request_id, held)
        self._scheduler.end_sequence(sequence)

    def cancel(self, request_id: int) -> None:
        """End the running sequences of a request."""
        for sequence in self._scheduler.find_sequences(request_id):
            self.finish(sequence, "cancelled")

    def cancel_unbegun(self, request: Request) -> None:
        """Tell that a request was cancelled before it had slots."""
        for index in range(request.message.params.num_choices):
            self._connection.send(cancelled_message(request, index))

    def fail(self, request: Request, error: MilepostError) -> None:
        """End a request that has begun."""
        self.refuse(request.request_id, error)
        for sequence in list(request.sequences):
            self._scheduler.end_sequence(sequence)

    def refuse(self, request_id: int, error: MilepostError) -> None:
        """Tell why a request cannot begin."""
        self._connection.send(Failed(request_id=request_id, failure=describe_failure(error)))

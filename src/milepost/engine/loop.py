"""The engine's loop: take messages, schedule, compute, advance, send.

The only code that touches the llama context after it was loaded, on one thread. Continuous
batching: each step holds one token of every decoding sequence and chunks of the prompts that are
still being computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from milepost.config import EngineSettings
from milepost.engine.advancing import Advancer
from milepost.engine.connection import Connection
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.finishing import Finisher
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.parts import make_parts
from milepost.engine.sequence import Request
from milepost.engine.status import describe_status
from milepost.engine.step_plan import ScheduledTokens
from milepost.errors import ContextFull, DecodeAborted, MilepostError, NativeCallFailed
from milepost.protocol.cache import ChangeCache, GetCache
from milepost.protocol.messages import (
    Cancel,
    ChangeSlot,
    CountMedia,
    Generate,
    GetStatus,
    MediaData,
    Shutdown,
    decode_tokens,
)

logger = logging.getLogger(__name__)


class Loop:
    """Serves the requests of one engine process."""

    def __init__(
        self,
        runtime: ModelRuntime,
        connection: Connection,
        settings: EngineSettings,
        clock: Callable[[], float],
        constraints: ConstraintMaker | None = None,
    ) -> None:
        self.parts = parts = make_parts(runtime, connection, settings, clock, constraints)
        self._connection = connection
        self._scheduler = parts.scheduler
        self._runner = parts.runner
        self._media = parts.media
        self._persister = parts.persister
        self._statistics = parts.statistics
        self._finisher = Finisher(parts)
        self._advancer = Advancer(parts, self._finisher)
        self._stopping = False

    def run(self) -> None:
        """Work until told to shut down; raises ConnectionClosed when the front end is gone."""
        while not self._stopping:
            self.step()

    def close(self) -> None:
        """Write what is not on disk yet; the loop must not run any more."""
        self._persister.close()
        self._media.close()

    def step(self) -> None:
        """Take what has arrived and compute one batch; wait for something to do when idle."""
        self._take_messages()
        self._admit_requests()
        self._serve_media()
        self._connection.flush()  # answers must not wait for a batch that may take seconds
        plan = self._scheduler.schedule()
        if not plan.scheduled or self._compute(plan.scheduled):
            self._advancer.advance(plan.scheduled)
            if plan.media is not None and self._compute_media(plan.media):
                self._advancer.advance_media(plan.media)
        self._connection.flush()

    # --- take ----------------------------------------------------------------------------

    def _take_messages(self) -> None:
        """Handle what has arrived; wait for it where there is nothing else to do."""
        is_idle = self._scheduler.is_idle
        self._persister.work(is_idle=is_idle)
        timeout_s = self._persister.wait_s() if is_idle else None
        wait = is_idle or self._scheduler.waits_for_media
        for message in self._connection.receive(wait=wait, timeout_s=timeout_s):
            self._handle(message)
        for request in self._media.release_held():
            self._add_request(request)
        for answer in self.parts.slot_files.change_idle():
            self._connection.send(answer)

    def _handle(self, message: object) -> None:
        match message:
            case Generate():
                self._take_request(message)
            case Cancel():
                self._cancel(message.request_id)
            case GetStatus():
                self._send_status(message.status_id)
            case GetCache():
                self._connection.send(self.parts.cache_control.summarise(message))
            case ChangeCache():
                self._connection.send(self.parts.cache_control.change(message))
            case ChangeSlot():
                self.parts.slot_files.add_change(message)
            case MediaData():
                self._media.take_content(message)
            case CountMedia():
                self._media.answer_count(message)
            case Shutdown():
                self._stopping = True
            case _:
                logger.warning("unexpected message %s", type(message).__name__)

    def _take_request(self, message: Generate) -> None:
        if not self._media.hold_back(message):
            self._add_request(message)

    def _add_request(self, message: Generate) -> None:
        """Check a request, put its media into its prompt, and let it wait for slots."""
        admission = self.parts.admission
        self._statistics.counters.num_requests += 1
        try:
            tokens = decode_tokens(message.prompt.tokens)
            admission.check_tokens(tokens)
            expanded = self._media.expand(message, tokens)
            self._statistics.counters.num_prompt_tokens += len(expanded.keys)
            admission.check_request(message, expanded.keys)
        except MilepostError as error:
            self._finisher.refuse(message.request_id, error)
            return
        self._scheduler.add_request(
            Request(expanded.message, expanded.keys, self.parts.clock(), expanded.spans)
        )

    def _cancel(self, request_id: int) -> None:
        request = self._scheduler.withdraw_request(request_id)
        if held := self._media.drop_held(request_id):
            request = Request(held, decode_tokens(held.prompt.tokens), self.parts.clock())
        if request is not None:
            self._finisher.cancel_unbegun(request)
        self._finisher.cancel(request_id)

    def _send_status(self, status_id: int) -> None:
        running, num_waiting = self._scheduler.running, len(self._scheduler.waiting)
        self._connection.send(
            describe_status(status_id, self.parts.slots, running, num_waiting, self.parts.totals)
        )

    # --- schedule ------------------------------------------------------------------------

    def _admit_requests(self) -> None:
        for request, error in self._scheduler.admit():
            if error is not None:
                self._finisher.refuse(request.request_id, error)
                continue
            self._statistics.counters.num_cached_tokens += request.num_cached
            self._advancer.start(request)

    def _serve_media(self) -> None:
        """Get on with the media that running requests need; end those that cannot have them."""
        for request, error in self._media.serve(self._scheduler.find_needed_media()):
            self._finisher.fail(request, error)

    # --- compute -------------------------------------------------------------------------

    def _compute(self, scheduled: list[ScheduledTokens]) -> bool:
        """Compute a batch; False when it was not computed and the next step must plan anew."""
        try:
            self._runner.compute(scheduled, self._scheduler.running)
        except NativeCallFailed as error:
            self._handle_failure(scheduled, error)
            return False
        return True

    def _compute_media(self, entry: ScheduledTokens) -> bool:
        """Compute a part of a media item; False as in `_compute`."""
        sequence = self._scheduler.running[entry.slot_id]
        if not self._runner.has_embeddings(entry, sequence):  # the next step asks for them again
            return False
        try:
            self._runner.compute_media(entry, sequence)
        except NativeCallFailed as error:
            self._handle_failure([entry], error)
            return False
        return True

    def _handle_failure(self, scheduled: list[ScheduledTokens], error: NativeCallFailed) -> None:
        """Free cells where there were too few, keep what an abort left; else end the requests."""
        running = self._scheduler.running
        match error:
            case ContextFull():
                for sequence in self._scheduler.make_room():
                    self._finisher.finish(sequence, "context_full")
            case DecodeAborted():
                self._runner.keep_aborted(scheduled, running)
            case _:
                logger.error("a batch failed: %s", error)
                sequences = [running[entry.slot_id] for entry in scheduled]
                for sequence in sequences:
                    self.parts.slots.clear_slot(self.parts.slots[sequence.slot_id])
                for request in {id(one.request): one.request for one in sequences}.values():
                    self._finisher.fail(request, error)

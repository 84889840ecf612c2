"""The engine's loop: take messages, give requests slots, compute one batch, sample, send.

The only code that touches the llama context after it was loaded, on one thread. Continuous
batching: each step holds one token of every decoding sequence and chunks of the prompts that are
still being computed. When cells run out, idle slots are cleared, then the youngest sequence is
paused and goes on later; a running request never fails for lack of cells.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from milepost.cache.checkpoint import CheckpointKind
from milepost.config import EngineSettings
from milepost.engine.admission import Admission
from milepost.engine.cache_control import CacheControl
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.connection import Connection
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.decoding import Decoder, cancelled_message
from milepost.engine.disk import make_fingerprint
from milepost.engine.media.feed import MediaFeed
from milepost.engine.model_runner import ModelRunner, batch_limits
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.persistence import Persister, parse_sync
from milepost.engine.prefill_plan import placement_limits
from milepost.engine.reporting import Reporter, Totals
from milepost.engine.restoring import Restorer
from milepost.engine.sequence import Request, Sequence, parse_tokens
from milepost.engine.slot_files import SlotFiles
from milepost.engine.slots import Slot, SlotTable
from milepost.engine.statistics import Statistics
from milepost.engine.status import describe_status
from milepost.engine.step_plan import ScheduledTokens
from milepost.errors import (
    ContextExceeded,
    ContextFull,
    DecodeAborted,
    MilepostError,
    NativeCallFailed,
)
from milepost.protocol.messages import (
    Cancel,
    ChangeCache,
    ChangeSlot,
    CountMedia,
    Failed,
    FinishReason,
    Generate,
    GetCache,
    GetStatus,
    MediaData,
    PromptProgress,
    Shutdown,
)

logger = logging.getLogger(__name__)


class Loop:
    """Owns the requests of one engine process."""

    def __init__(
        self,
        runtime: ModelRuntime,
        connection: Connection,
        settings: EngineSettings,
        clock: Callable[[], float],
        constraints: ConstraintMaker | None = None,
    ) -> None:
        context, num_parallel = runtime.context, settings.parallel
        self._context = context
        self._prompt_logits = runtime.prompt_logits
        self._connection = connection
        self._clock = clock
        self._statistics = Statistics()
        self._slots = SlotTable(context, num_parallel, runtime.states, runtime.num_parked)
        self._checkpointer = Checkpointer(runtime, clock)
        self._restorer = Restorer(runtime, self._slots, self._statistics, clock)
        self._admission = Admission(
            runtime,
            self._slots,
            self._restorer,
            constraints or ConstraintMaker(context.model),
            placement_limits(settings),
            clock,
        )
        self._persister = Persister(
            runtime.cache, parse_sync(settings.cache_disk_sync), runtime.prompt_logits, clock
        )
        self._limits = batch_limits(context, runtime.traits)
        self._runner = ModelRunner(context, self._slots, self._limits)
        reporter = Reporter(context.model.vocab)
        self._decoder = Decoder(context, reporter, connection.send, clock)
        self._media = MediaFeed(runtime.media, connection.send)
        self._totals = Totals(
            self._statistics,
            reporter,
            self._checkpointer,
            runtime.cache,
            self._media.totals,
        )
        self._control = CacheControl(runtime, self._slots, self._totals, self._media.clear, clock)
        self._slot_files = SlotFiles(
            runtime,
            self._slots,
            (self._checkpointer, self._persister),
            lambda: make_fingerprint(settings, context.model.library.name, runtime.traits).key,
            clock,
        )
        self._running: list[Sequence] = []  # by age, oldest first; paused and forking ones included
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
        is_idle = not self._running and not self._admission.waiting
        self._persister.work(is_idle=is_idle)
        timeout_s = self._persister.wait_s() if is_idle else None
        wait = is_idle or self._runner.waits_for_media
        for message in self._connection.receive(wait=wait, timeout_s=timeout_s):
            self._take(message)
        for request in self._media.release():
            self._enqueue(request)
        for answer in self._slot_files.change_idle():
            self._connection.send(answer)
        self._admit()
        self._serve_media()
        self._connection.flush()  # answers must not wait for a batch that may take seconds
        plan = self._runner.plan(self._running, self._statistics.prefill_tokens_per_s)
        if not plan.scheduled or self._compute(plan.scheduled):
            self._advance(plan.scheduled)
            if plan.media is not None and self._compute_media(plan.media):
                self._advance_media(plan.media)
        self._connection.flush()

    # --- messages ------------------------------------------------------------------------

    def _take(self, message: object) -> None:
        match message:
            case Generate():
                if not self._media.hold(message):
                    self._enqueue(message)
            case Cancel():
                self._cancel(message.request_id)
            case GetStatus():
                self._send_status(message.status_id)
            case GetCache():
                self._connection.send(self._control.summarise(message))
            case ChangeCache():
                self._connection.send(self._control.change(message))
            case ChangeSlot():
                self._slot_files.take(message)
            case MediaData() | CountMedia():
                self._media.take(message)
            case Shutdown():
                self._stopping = True
            case _:
                logger.warning("unexpected message %s", type(message).__name__)

    def _enqueue(self, message: Generate) -> None:
        self._statistics.num_requests += 1
        try:
            tokens = parse_tokens(message.tokens)
            self._admission.check_tokens(tokens)
            expanded = self._media.expand(message, tokens)
            self._statistics.num_prompt_tokens += len(expanded.keys)
            self._admission.check(message, expanded.keys)
        except MilepostError as error:
            self._fail(message.request_id, error)
            return
        self._admission.waiting.append(
            Request(expanded.message, expanded.keys, self._clock(), expanded.spans)
        )

    def _cancel(self, request_id: int) -> None:
        request = self._admission.take_waiting(request_id)
        if held := self._media.drop(request_id):
            request = Request(held, parse_tokens(held.tokens), self._clock())
        if request is not None:
            for index in range(request.message.num_choices):
                self._connection.send(cancelled_message(request, index))
        for sequence in [c for c in self._running if c.request.request_id == request_id]:
            self._finish(sequence, "cancelled")

    def _fail(self, request_id: int, error: MilepostError) -> None:
        num = error.num_prompt_tokens if isinstance(error, ContextExceeded) else 0
        kind, text = type(error).__name__, str(error)
        message = Failed(request_id=request_id, kind=kind, message=text, num_prompt_tokens=num)
        self._connection.send(message)

    def _send_status(self, status_id: int) -> None:
        num_waiting = len(self._admission.waiting)
        self._connection.send(
            describe_status(status_id, self._slots, self._running, num_waiting, self._totals)
        )

    def _admit(self) -> None:
        """Begin waiting requests; paused sequences come first."""
        if any(sequence.state == "preempted" for sequence in self._running):
            return
        for request, error in self._admission.admit(self._running):
            if error is not None:
                self._fail(request.request_id, error)
                continue
            self._running += request.sequences
            self._statistics.num_cached_tokens += request.num_cached
            self._send_progress(request)
            if request.known_logits is not None:
                self._answer_known(request, request.known_logits)

    def _serve_media(self) -> None:
        """Get on with the media that running requests need; end those that cannot have them."""
        for request, error in self._media.serve(self._runner.find_needs(self._running)):
            self._fail_request(request, error)

    def _answer_known(self, request: Request, logits: np.ndarray) -> None:
        """Go on where nothing of a prompt has to be computed."""
        for sequence in self._end_prefill(request.sequences[0]):
            reason = self._decoder.step_from(sequence, logits)
            if reason is not None:
                self._finish(sequence, reason)

    # --- the batch -----------------------------------------------------------------------

    def _compute(self, scheduled: list[ScheduledTokens]) -> bool:
        """Compute a batch; False when it was not computed and the next step must plan anew."""
        owner = self._sequence_of(scheduled[0]) if self._runner.is_abortable(scheduled) else None
        return self._carry_out(
            scheduled, lambda: self._runner.decode(scheduled, self._running), owner
        )

    def _compute_media(self, entry: ScheduledTokens) -> bool:
        """Compute a part of a media; False as in `_compute`."""
        sequence = self._sequence_of(entry)
        if not self._runner.has_media(entry, sequence):  # the next step asks for it again
            return False
        return self._carry_out([entry], lambda: self._runner.decode_media(entry, sequence), None)

    def _carry_out(
        self, scheduled: list[ScheduledTokens], decode: Callable[[], None], owner: Sequence | None
    ) -> bool:
        """Decode; `owner` may abort it."""
        started_s = self._clock()
        try:
            if owner is not None:
                self._connection.allow_abort(owner.request.request_id)
            decode()
        except ContextFull:
            self._make_room()
            return False
        except DecodeAborted:
            self._keep_aborted(scheduled)
            return False
        except NativeCallFailed as error:
            self._fail_batch(scheduled, error)
            return False
        finally:
            if owner is not None:
                self._connection.forbid_abort()
        num_decoding = sum(entry.is_decoding for entry in scheduled)
        num_prefill = sum(entry.num_tokens for entry in scheduled) - num_decoding
        self._statistics.note_batch(num_prefill, num_decoding, self._clock() - started_s)
        return True

    def _make_room(self) -> None:
        """Free cells: of an idle slot, or else of the youngest sequence, which is paused.

        The youngest one waits even when it holds nothing: it is its prompt that does not fit, and
        an older one must not be stopped for it.
        """
        if self._slots.evict_idle():
            return
        *others, youngest = [sequence for sequence in self._running if sequence.state == "running"]
        if others:
            slot = self._slots[youngest.slot_id]
            self._slots.settle(slot)
            self._checkpointer.save(slot, "chunk")
            self._slots.clear(slot)
            youngest.state = "preempted"
            return
        siblings = [c for c in youngest.request.sequences if c.state == "forking"]
        for sequence in (youngest, *siblings):
            self._finish(sequence, "context_full")

    def _keep_aborted(self, scheduled: list[ScheduledTokens]) -> None:
        """Bring the slot of an aborted prefill in line with what the context still holds."""
        for entry in scheduled:
            slot, sequence = self._slots[entry.slot_id], self._sequence_of(entry)
            num_kept = max(self._context.pos_max(slot.seq_id) + 1 - slot.num_positions, 0)
            end = slot.num_tokens + num_kept  # of text; the last position of an image is its first
            self._statistics.num_prefilled_tokens += end - slot.num_tokens
            sequence.request.note_computed(slot.num_tokens, end)
            self._slots.extend(slot, sequence.tokens[slot.num_tokens : end])

    def _fail_batch(self, scheduled: list[ScheduledTokens], error: MilepostError) -> None:
        logger.error("a batch failed: %s", error)
        for entry in scheduled:
            self._slots.clear(self._slots[entry.slot_id])
        for request in {
            id(c.request): c.request for c in map(self._sequence_of, scheduled)
        }.values():
            self._fail_request(request, error)

    def _fail_request(self, request: Request, error: MilepostError) -> None:
        """End a request that has begun."""
        self._fail(request.request_id, error)
        for sequence in list(request.sequences):
            self._end(sequence)

    # --- after the batch -----------------------------------------------------------------

    def _advance(self, scheduled: list[ScheduledTokens]) -> None:
        """Note what the batch computed, keep states, and sample where a sequence is complete."""
        row = -1
        for entry in scheduled:
            row += entry.num_tokens
            self._advance_one(entry, row)

    def _advance_media(self, entry: ScheduledTokens) -> None:
        """Do the same for a media when its last part was computed."""
        if whole := self._runner.note_media(entry, self._sequence_of(entry)):
            self._advance_one(whole, entry.num_tokens - 1)

    def _advance_one(self, entry: ScheduledTokens, row: int) -> None:
        """Do it for one entry, whose last token has this row in the batch."""
        slot, sequence = self._slots[entry.slot_id], self._sequence_of(entry)
        end = slot.num_tokens + entry.num_tokens
        sequence.request.note_computed(slot.num_tokens, end)
        self._slots.extend(slot, sequence.tokens[slot.num_tokens : end])
        self._runner.forget_media(sequence.request)
        if sequence.request.is_prefilling:
            self._note_progress(sequence.request, slot)
        if end < sequence.num_tokens:
            return
        ready_sequences = [sequence]
        if sequence.request.is_prefilling:
            self._prompt_logits.note(sequence.request.prompt, self._context.logits(row))
            ready_sequences = self._end_prefill(sequence)
        for ready in ready_sequences:
            if reason := self._decoder.step(ready, row):
                self._finish(ready, reason)

    def _note_progress(self, request: Request, slot: Slot) -> None:
        """Keep the state where the plan says so, and tell the client how far the prefill is."""
        if kind := request.checkpoints.pop(slot.num_tokens, None):
            request.num_checkpoints += self._checkpointer.save(slot, kind).num_checkpoints
        self._send_progress(request)

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
        if request.message.wants_progress:
            self._connection.send(
                PromptProgress(
                    request_id=request.request_id,
                    num_tokens=len(request.prompt),
                    num_cached=request.num_cached,
                    num_processed=self._slots[request.sequences[0].slot_id].num_tokens,
                    elapsed_ms=1000 * (self._clock() - request.prefill_started_s),
                )
            )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._decoder.finish(sequence, reason)
        self._connection.flush()  # the client need not wait for the copy
        kind: CheckpointKind = "cancelled" if reason == "cancelled" else "reply_end"
        slot = self._slots[sequence.slot_id]
        held = slot.held.copy()  # states of it are kept, even where the slot itself is cleared
        self._slots.settle(slot)
        self._checkpointer.save(slot, kind)
        self._persister.note(held, len(sequence.request.prompt))
        if sequence.index == 0:
            self._control.note_request(sequence.request.request_id, held)
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones; paused ones get their chance with its cells."""
        if sequence.state == "finished":
            return
        sequence.state = "finished"
        self._statistics.note_sequence(sequence.num_decoded)
        self._running.remove(sequence)
        self._slots.release(self._slots[sequence.slot_id])
        sequence.sampler.close()
        if sequence.request.is_finished:
            sequence.request.sequences.clear()  # they refer to each other, and hold whole prompts
        for other in self._running:
            if other.state == "preempted":
                other.state = "running"
                self._restorer.refill(self._slots[other.slot_id], other.known_tokens)

    def _sequence_of(self, entry: ScheduledTokens) -> Sequence:
        return next(sequence for sequence in self._running if sequence.slot_id == entry.slot_id)

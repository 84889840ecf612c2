"""The engine's loop: take messages, give requests slots, compute one batch, sample, send.

The only code that touches the llama context after it was loaded, on one thread. Continuous
batching: each step holds one token of every decoding choice and chunks of the prompts that are
still being computed. When cells run out, idle slots are cleared, then the youngest choice is
paused and computed again later; a running request never fails for lack of cells.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milepost.engine.connection import Connection
from milepost.engine.decoding import Decoder, cancelled_message
from milepost.engine.detokenizer import Detokenizer
from milepost.engine.sampling import Sampler, seed_of_choice
from milepost.engine.scheduler import BatchLimits, Share, Work, plan_batch
from milepost.engine.sequence import Choice, Request, parse_tokens
from milepost.engine.slots import SlotTable
from milepost.engine.statistics import Statistics
from milepost.engine.stop_strings import StopMatcher
from milepost.errors import (
    ContextExceeded,
    ContextFull,
    DecodeAborted,
    InvalidRequest,
    MilepostError,
    NativeCallFailed,
)
from milepost.libllama import Batch, Context
from milepost.protocol.messages import (
    Cancel,
    Failed,
    FinishReason,
    Generate,
    GetStatus,
    MemoryKind,
    PromptProgress,
    Shutdown,
    SlotState,
    SlotStatus,
    Status,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """What the context's memory can do."""

    kind: MemoryKind
    can_cut: bool  # positions at the end of a sequence can be removed
    survives_abort: bool  # an aborted batch leaves the finished micro-batches usable


class Loop:
    """Owns the requests of one engine process."""

    def __init__(
        self,
        context: Context,
        traits: MemoryTraits,
        connection: Connection,
        num_parallel: int,
        clock: Callable[[], float],
    ) -> None:
        library = context.model.library
        self._library = library
        self._context = context
        self._traits = traits
        self._connection = connection
        self._clock = clock
        self._slots = SlotTable(context, num_parallel, can_cut=traits.can_cut)
        self._batch = Batch(library, max(context.num_batch_tokens, num_parallel))
        self._limits = BatchLimits(context.num_batch_tokens, context.num_ubatch_tokens)
        self._decoder = Decoder(context, connection.send, clock)
        self._waiting: deque[Request] = deque()
        self._running: list[Choice] = []  # by age, oldest first; paused and forking ones included
        self._statistics = Statistics()
        self._stopping = False

    def run(self) -> None:
        """Work until told to shut down; raises ConnectionClosed when the front end is gone."""
        while not self._stopping:
            self.step()

    def step(self) -> None:
        """Take what has arrived and compute one batch; waits for a message when idle."""
        is_idle = not self._running and not self._waiting
        for message in self._connection.receive(wait=is_idle):
            self._take(message)
        self._admit()
        self._connection.flush()  # answers must not wait for a batch that may take seconds
        shares = self._plan()
        if shares and self._compute(shares):
            self._advance(shares)
        self._connection.flush()

    # --- messages ------------------------------------------------------------------------

    def _take(self, message: object) -> None:
        match message:
            case Generate():
                self._enqueue(message)
            case Cancel():
                self._cancel(message.request_id)
            case GetStatus():
                self._connection.send(self._status(message.status_id))
            case Shutdown():
                self._stopping = True
            case _:
                logger.warning("unexpected message %s", type(message).__name__)

    def _enqueue(self, message: Generate) -> None:
        self._statistics.num_requests += 1
        try:
            prompt = parse_tokens(message.tokens)
            self._statistics.num_prompt_tokens += len(prompt)
            self._check(message, prompt)
        except MilepostError as error:
            self._fail(message.request_id, error)
            return
        self._waiting.append(Request(message, prompt, self._clock()))

    def _check(self, message: Generate, prompt: np.ndarray) -> None:
        """Raise for a request that could never be carried out, or would harm the process."""
        if len(prompt) == 0:
            raise InvalidRequest("the prompt has no tokens")
        if len(prompt) >= self._context.num_context_tokens:
            raise ContextExceeded(len(prompt), self._context.num_context_tokens)
        if not 1 <= message.num_choices <= len(self._slots.slots):
            raise InvalidRequest(
                f"n is {message.num_choices}, but this server decodes at most "
                f"{len(self._slots.slots)} choices at a time (--parallel)",
                param="n",
            )
        vocab = self._context.model.vocab
        if int(prompt.min()) < 0 or int(prompt.max()) >= vocab.num_tokens:
            vocab.check_tokens(prompt.tolist())

    def _cancel(self, request_id: int) -> None:
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                for index in range(request.message.num_choices):
                    self._connection.send(cancelled_message(request, index))
                return
        for choice in [c for c in self._running if c.request.request_id == request_id]:
            self._finish(choice, "cancelled")

    def _fail(self, request_id: int, error: MilepostError) -> None:
        self._connection.send(
            Failed(request_id=request_id, kind=type(error).__name__, message=str(error))
        )

    # --- admission -----------------------------------------------------------------------

    def _admit(self) -> None:
        """Give slots to waiting requests, first come first served; paused choices come first."""
        if any(choice.state == "paused" for choice in self._running):
            return
        while self._waiting and self._slots.num_idle >= self._waiting[0].message.num_choices:
            request = self._waiting.popleft()
            try:
                samplers = self._make_samplers(request)
            except InvalidRequest as error:
                self._fail(request.request_id, error)
                continue
            self._start(request, samplers)

    def _make_samplers(self, request: Request) -> list[Sampler]:
        params = request.message.sampling
        samplers = []
        for index in range(request.message.num_choices):
            seed = seed_of_choice(params.seed, index)
            sampler = Sampler(self._library, self._context, params, seed)
            sampler.prime(request.prompt)
            samplers.append(sampler)
        return samplers

    def _start(self, request: Request, samplers: list[Sampler]) -> None:
        """Take the slots of a request; its first choice computes the prompt for all."""
        message = request.message
        first = self._slots.take(request.prompt, reuse=message.cache_prompt)
        request.num_cached = first.num_tokens
        request.prefill_started_s = self._clock()
        self._statistics.num_cached_tokens += first.num_tokens
        for index, sampler in enumerate(samplers):
            slot = first if index == 0 else self._slots.take_empty()
            choice = Choice(
                request=request,
                index=index,
                slot_id=slot.slot_id,
                sampler=sampler,
                detokenizer=Detokenizer(),
                stop=StopMatcher(message.stop),
                tokens=request.prompt,
                num_tokens=len(request.prompt),
                state="running" if index == 0 else "forking",
            )
            request.choices.append(choice)
            self._running.append(choice)
        self._send_progress(request)

    # --- the batch -----------------------------------------------------------------------

    def _plan(self) -> list[Share]:
        works = []
        for choice in self._running:
            if choice.state == "running":
                missing = choice.num_tokens - self._slots[choice.slot_id].num_tokens
                is_decoding = missing == 1 and choice.num_decoded > 0
                works.append(Work(choice.slot_id, missing, is_decoding))
        return plan_batch(works, self._limits, self._statistics.prefill_tokens_per_s)

    def _compute(self, shares: list[Share]) -> bool:
        """Compute a batch; False when it was not computed and the next step must plan anew."""
        self._fill_batch(shares)
        owner = self._only_prefill_in(shares)
        started_s = self._clock()
        try:
            if owner is not None:
                self._connection.allow_abort(owner.request.request_id)
            self._context.decode(self._batch)
        except ContextFull:
            self._make_room()
            return False
        except DecodeAborted:
            self._keep_aborted(shares)
            return False
        except NativeCallFailed as error:
            self._fail_batch(shares, error)
            return False
        finally:
            self._connection.forbid_abort()
        num_decoding = sum(share.is_decoding for share in shares)
        num_prefill = self._batch.num_tokens - num_decoding
        self._statistics.note_batch(num_prefill, num_decoding, self._clock() - started_s)
        return True

    def _fill_batch(self, shares: list[Share]) -> None:
        self._batch.clear()
        for share in shares:
            slot, choice = self._slots[share.slot_id], self._choice_in(share.slot_id)
            start, end = slot.num_tokens, slot.num_tokens + share.num_tokens
            self._batch.add_tokens(
                choice.tokens[start:end],
                start,
                share.slot_id,
                wants_last=end == choice.num_tokens,
            )

    def _only_prefill_in(self, shares: list[Share]) -> Choice | None:
        """Return the choice that a batch belongs to when it is a prefill of one request alone.

        An abort of any other batch would hit the tokens of others.
        """
        if len(shares) != 1 or shares[0].is_decoding:
            return None
        return self._choice_in(shares[0].slot_id)

    def _make_room(self) -> None:
        """Free cells: of an idle slot, or else of the youngest choice, which is paused.

        The youngest one waits even when it holds nothing: it is its prompt that does not fit, and
        an older one must not be stopped for it.
        """
        if self._slots.evict_idle():
            return
        *others, youngest = [choice for choice in self._running if choice.state == "running"]
        if others:
            self._slots.clear(self._slots[youngest.slot_id])
            youngest.state = "paused"
            return
        siblings = [c for c in youngest.request.choices if c.state == "forking"]
        for choice in (youngest, *siblings):
            self._finish(choice, "context_full")

    def _keep_aborted(self, shares: list[Share]) -> None:
        """Bring the slot of an aborted prefill in line with what the context still holds.

        A recurrent state is lost with the micro-batch that was aborted, though `pos_max` counts
        that micro-batch as done (docs/decisions/0002).
        """
        for share in shares:
            slot, choice = self._slots[share.slot_id], self._choice_in(share.slot_id)
            end = self._context.pos_max(share.slot_id) + 1
            if not self._traits.survives_abort or end < slot.num_tokens:
                self._slots.clear(slot)
            else:
                self._statistics.num_prefilled_tokens += end - slot.num_tokens
                self._slots.extend(slot, choice.tokens[slot.num_tokens : end])

    def _fail_batch(self, shares: list[Share], error: MilepostError) -> None:
        logger.error("a batch failed: %s", error)
        for share in shares:
            self._slots.clear(self._slots[share.slot_id])
        for request in {id(c.request): c.request for c in map(self._choice_of, shares)}.values():
            self._fail(request.request_id, error)
            for choice in list(request.choices):
                self._end(choice)

    # --- after the batch -----------------------------------------------------------------

    def _advance(self, shares: list[Share]) -> None:
        """Note what the batch computed, and sample where a choice is complete."""
        row = -1
        for share in shares:
            row += share.num_tokens
            slot, choice = self._slots[share.slot_id], self._choice_in(share.slot_id)
            end = slot.num_tokens + share.num_tokens
            self._slots.extend(slot, choice.tokens[slot.num_tokens : end])
            if choice.request.is_prefilling:
                self._send_progress(choice.request)
            if end < choice.num_tokens:
                continue
            for ready in self._end_prefill(choice) if choice.request.is_prefilling else [choice]:
                reason = self._decoder.step(ready, row)
                if reason is not None:
                    self._finish(ready, reason)

    def _end_prefill(self, first: Choice) -> list[Choice]:
        """Fork the other choices of a request from the first; return all of them."""
        request = first.request
        request.prefill_ended_s = self._clock()
        for choice in request.choices:
            if choice.state == "forking":
                self._slots.fork(self._slots[first.slot_id], self._slots[choice.slot_id])
                choice.state = "running"
        return [choice for choice in request.choices if choice.state == "running"]

    def _send_progress(self, request: Request) -> None:
        if request.message.wants_progress:
            self._connection.send(
                PromptProgress(
                    request_id=request.request_id,
                    num_tokens=len(request.prompt),
                    num_cached=request.num_cached,
                    num_processed=self._slots[request.choices[0].slot_id].num_tokens,
                    elapsed_ms=1000 * (self._clock() - request.prefill_started_s),
                )
            )

    def _finish(self, choice: Choice, reason: FinishReason) -> None:
        self._decoder.finish(choice, reason)
        self._end(choice)

    def _end(self, choice: Choice) -> None:
        """Take a choice out of the running ones; paused ones get their chance with its cells."""
        if choice.state == "finished":
            return
        choice.state = "finished"
        self._statistics.num_decoded_tokens += choice.num_decoded
        self._running.remove(choice)
        self._slots.release(self._slots[choice.slot_id])
        choice.sampler.close()
        if choice.request.is_finished:
            choice.request.choices.clear()  # they refer to each other, and hold whole prompts
        for other in self._running:
            if other.state == "paused":
                other.state = "running"

    def _choice_in(self, slot_id: int) -> Choice:
        return next(choice for choice in self._running if choice.slot_id == slot_id)

    def _choice_of(self, share: Share) -> Choice:
        return self._choice_in(share.slot_id)

    # --- status --------------------------------------------------------------------------

    def _status(self, status_id: int) -> Status:
        return Status(
            status_id=status_id,
            slots=tuple(self._slot_status(slot_id) for slot_id in range(len(self._slots.slots))),
            num_waiting=len(self._waiting),
            counters=self._statistics.counters(),
        )

    def _slot_status(self, slot_id: int) -> SlotStatus:
        slot = self._slots[slot_id]
        choice = self._choice_in(slot_id) if slot.is_busy else None
        state: SlotState = "idle"
        if choice is not None:
            state = "prefill" if choice.request.is_prefilling else "decode"
            if choice.state == "paused":
                state = "waiting"
        return SlotStatus(
            slot_id=slot_id,
            state=state,
            request_id=choice.request.request_id if choice else -1,
            num_tokens=slot.num_tokens,
            num_prompt_tokens=len(choice.request.prompt) if choice else 0,
            num_decoded=choice.num_decoded if choice else 0,
        )

"""Requests that wait, and how they begin: slots, samplers, and the plan of the prefill.

First come, first served, with one exception: a request whose prefix another one is computing right
now waits until that is done, and lets others pass. Several requests with one system prompt that
arrive together compute it once, and so do two that are the same.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from milepost.cache.placement import PlacementLimits
from milepost.cache.tree import shared_length
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.detokenizer import Detokenizer
from milepost.engine.media.keys import floor_to_block
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.prefill_plan import plan_request
from milepost.engine.reasoning_budget import ReasoningBudget
from milepost.engine.restoring import Restorer
from milepost.engine.sampling import Sampler, seed_of_choice
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import SlotTable
from milepost.engine.stop_strings import StopMatcher
from milepost.errors import ContextExceeded, InvalidRequest, MilepostError
from milepost.protocol.messages import Generate

# A prefix that another request is computing is waited for when it is at least so much longer than
# what can be had at once. Arbitrary: a fraction of a micro-batch is computed as fast as waited for.
MIN_JOIN_TOKENS = 128


class Admission:
    """Owns the waiting requests, and turns them into sequences."""

    def __init__(
        self,
        runtime: ModelRuntime,
        slots: SlotTable,
        restorer: Restorer,
        constraints: ConstraintMaker,
        limits: PlacementLimits,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._slots = slots
        self._restorer = restorer
        self._constraints = constraints
        self._clock = clock
        self.waiting: deque[Request] = deque()

    def check(self, message: Generate, prompt: np.ndarray) -> None:
        """Raise for a request that could never be carried out, or would harm the process."""
        context = self._runtime.context
        if len(prompt) == 0:
            raise InvalidRequest("the prompt has no tokens")
        if len(prompt) >= context.num_context_tokens:
            raise ContextExceeded(len(prompt), context.num_context_tokens)
        if not 1 <= message.num_choices <= len(self._slots.slots):
            raise InvalidRequest(
                f"n is {message.num_choices}, but this server decodes at most "
                f"{len(self._slots.slots)} choices at a time (--parallel)",
                param="n",
            )

    def check_tokens(self, tokens: np.ndarray) -> None:
        """Raise InvalidRequest unless these are tokens of the model; none of them stand for media.

        An unknown one would be read from outside of llama.cpp's tables.
        """
        vocab = self._runtime.context.model.vocab
        if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab.num_tokens):
            vocab.check_tokens(tokens.tolist())

    def take_waiting(self, request_id: int) -> Request | None:
        """Take a request out of the queue; None if it is not there."""
        for request in self.waiting:
            if request.request_id == request_id:
                self.waiting.remove(request)
                return request
        return None

    def admit(self, running: list[Sequence]) -> Iterator[tuple[Request, MilepostError | None]]:
        """Begin as many requests as there are slots for; yield each, and why it cannot begin.

        The caller adds the sequences of each to `running` before it goes on.
        """
        for request in list(self.waiting):
            if self._slots.num_idle < request.message.num_choices:
                self._restorer.prefetch(request)
                return
            if request.message.cache_prompt and self._waits_for_prefix(request, running):
                continue
            self.waiting.remove(request)
            try:
                samplers = self._make_samplers(request)
            except MilepostError as error:
                yield request, error
                continue
            self._begin(request, samplers)
            yield request, None

    def _waits_for_prefix(self, request: Request, running: list[Sequence]) -> bool:
        """Return whether a running prefill will soon hold much of this prompt.

        Where a state can only be kept on the way, that prefill is told to keep one.
        """
        computing = [c for c in running if c.index == 0 and c.request.is_prefilling]
        if not computing:
            return False
        available = self._restorer.best_pos(request.prompt)
        for sequence in computing:
            shared = shared_length(sequence.request.prompt, request.prompt[:-1])
            shared = floor_to_block(request.prompt, shared)
            reached = self._slots[sequence.slot_id].num_tokens
            if shared - max(available, reached) < MIN_JOIN_TOKENS:
                continue
            if self._runtime.traits.has_states:
                sequence.request.add_checkpoint(shared, "divergence")
            return True
        return False

    def _make_samplers(self, request: Request) -> list[Sampler]:
        """Make those of all sequences; an error leaves none open."""
        samplers: list[Sampler] = []
        with contextlib.ExitStack() as stack:
            for index in range(request.message.num_choices):
                sampler = self._make_sampler(request.message, index)
                stack.callback(sampler.close)
                sampler.prime(request.prompt)
                samplers.append(sampler)
            stack.pop_all()
        return samplers

    def _make_sampler(self, message: Generate, index: int) -> Sampler:
        constraint = self._constraints.make(message)
        seed = seed_of_choice(message.sampling.seed, index)
        try:
            return Sampler(self._runtime.context, message.sampling, seed, constraint)
        except BaseException:
            if constraint is not None:
                constraint.close()
            raise

    def _begin(self, request: Request, samplers: list[Sampler]) -> None:
        """Take the slots of a request; its first sequence computes the prompt for all."""
        message = request.message
        request.prefill_started_s = self._clock()
        start = self._restorer.start(request.prompt, reuse=message.cache_prompt)
        request.facts = start.facts
        request.num_cached = start.facts.num_reused
        request.known_logits = start.known_logits
        self._restorer.clear_idle(start.slot)
        plan_request(request, self._runtime, self._limits, start.match)
        limit = message.reasoning
        for index, sampler in enumerate(samplers):
            slot = start.slot if index == 0 else self._restorer.start_empty()
            request.sequences.append(
                Sequence(
                    request=request,
                    index=index,
                    slot_id=slot.slot_id,
                    sampler=sampler,
                    detokenizer=Detokenizer(),
                    stop=StopMatcher(message.stop),
                    budget=ReasoningBudget(limit) if limit is not None else None,
                    tokens=request.prompt,
                    num_tokens=len(request.prompt),
                    state="running" if index == 0 else "forking",
                )
            )

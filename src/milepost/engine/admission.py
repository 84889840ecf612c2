"""How a request begins: it is checked, then it gets slots, samplers, and the plan of its prefill.

When it may begin is for the scheduler to decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from milepost.arrays import Tokens
from milepost.cache.placement import PlacementLimits
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.detokenizer import Detokenizer
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.prefill_plan import plan_request
from milepost.engine.reasoning_budget import ReasoningBudget
from milepost.engine.restoring import Restorer
from milepost.engine.sampling import Sampler, seed_of_choice
from milepost.engine.sequence import Request, Sequence
from milepost.engine.slots import SlotTable
from milepost.engine.stop_strings import StopMatcher
from milepost.errors import ContextExceeded, InvalidRequest
from milepost.protocol.messages import Generate


class Admission:
    """Turns requests into sequences that run."""

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

    def check_request(self, message: Generate, prompt: Tokens) -> None:
        """Raise for a request that could never be carried out, or would harm the process."""
        context = self._runtime.context
        if len(prompt) == 0:
            raise InvalidRequest("the prompt has no tokens")
        if len(prompt) >= context.num_context_tokens:
            raise ContextExceeded(len(prompt), context.num_context_tokens)
        if not 1 <= message.params.num_choices <= len(self._slots.slots):
            raise InvalidRequest(
                f"n is {message.params.num_choices}, but this server decodes at most "
                f"{len(self._slots.slots)} choices at a time (--parallel)",
                param="n",
            )

    def check_tokens(self, tokens: Tokens) -> None:
        """Raise InvalidRequest unless these are tokens of the model; none of them stand for media.

        An unknown one would be read from outside of llama.cpp's tables.
        """
        vocab = self._runtime.context.model.vocab
        if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab.num_tokens):
            vocab.check_tokens(tokens.tolist())

    def make_samplers(self, request: Request) -> list[Sampler]:
        """Make those of all sequences of a request; an error leaves none open.

        Raises InvalidRequest or NotSupported for sampling fields that cannot be used.
        """
        samplers: list[Sampler] = []
        with contextlib.ExitStack() as stack:
            for index in range(request.message.params.num_choices):
                sampler = self._make_sampler(request.message, index)
                stack.callback(sampler.close)
                sampler.prime(request.prompt)
                samplers.append(sampler)
            stack.pop_all()
        return samplers

    def _make_sampler(self, message: Generate, index: int) -> Sampler:
        constraint = self._constraints.make(message)
        seed = seed_of_choice(message.params.sampling.seed, index)
        try:
            return Sampler(self._runtime.context, message.params.sampling, seed, constraint)
        except BaseException:
            if constraint is not None:
                constraint.close()
            raise

    def begin(self, request: Request, samplers: list[Sampler]) -> None:
        """Let a request take its slots; its first sequence computes the prompt for all."""
        message = request.message
        request.prefill_started_s = self._clock()
        start = self._restorer.start(request.prompt, reuse=message.params.cache_prompt)
        request.facts = start.facts
        request.num_cached = start.facts.num_reused
        request.known_logits = start.known_logits
        self._restorer.evict_costly(start.slot)
        plan_request(request, self._runtime, self._limits, start.match)
        limit = message.prompt.reasoning
        for index, sampler in enumerate(samplers):
            slot = start.slot if index == 0 else self._restorer.start_empty()
            request.sequences.append(
                Sequence(
                    request=request,
                    index=index,
                    slot_id=slot.slot_id,
                    sampler=sampler,
                    detokenizer=Detokenizer(),
                    stop=StopMatcher(message.params.stop),
                    budget=ReasoningBudget(limit) if limit is not None else None,
                    tokens=request.prompt,
                    num_tokens=len(request.prompt),
                    state="running" if index == 0 else "forking",
                )
            )

"""The use case that all dialects share: prompts and parameters in, events of choices out.

Checks what can be checked before the engine works, opens one generation for each prompt, and
yields their events under the index that a choice has in the answer: prompt by prompt, each with
`num_choices` choices. Dialects turn events into their shapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from milepost.api.request_log import RequestRecord
from milepost.api.services import Services
from milepost.api.shapes import ChoiceResult
from milepost.chat.prompts.reply_matching import RepliesFound
from milepost.chat.reply_memory.reply_store import ReplyContext, ReplyKeeper, SampledReply
from milepost.errors import ContextExceeded, InvalidRequest
from milepost.media.loader import MediaFiles
from milepost.protocol.messages import (
    Delta,
    Finished,
    GenerationParams,
    PromptInput,
    PromptProgress,
)
from milepost.workers.client import NO_MEDIA, Generation, MediaContents

Event = Delta | Finished | PromptProgress


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for the engine, and what the front end has to know about it."""

    input: PromptInput
    reply: ReplyContext | None = None  # to keep replies by; None where there is no conversation
    replies: RepliesFound | None = None  # those in the conversation
    files: MediaFiles | None = None  # the content of its media; None without any

    @property
    def contents(self) -> MediaContents:
        """Its media, for the engine."""
        return MediaContents(self.files.held, self.files.read) if self.files else NO_MEDIA


class Completion:
    """A request at work.

    Entering lists it among the requests and sends it to the engine, or raises QueueFull; leaving
    stops what still runs.
    """

    def __init__(
        self,
        services: Services,
        prompts: Sequence[Prompt],
        params: GenerationParams,
        record: RequestRecord,
    ) -> None:
        assert prompts, "a request has at least one prompt"
        self._services = services
        self._prompts = prompts
        self._params = params
        self._record = record
        self._stack = AsyncExitStack()
        self._generations: list[Generation] = []
        self._ends: dict[int, Finished] = {}
        self.num_choices = params.num_choices  # of each prompt
        self.num_results = len(prompts) * self.num_choices  # of all prompts
        self._sampled = [SampledReply() for _ in range(self.num_results)]
        self._keeper = ReplyKeeper(services.replies, services.vocab)

    async def __aenter__(self) -> Completion:
        # Several prompts are let in together: a request that always had too many could not be sent.
        self._services.engine.check_room(self.num_choices)
        self._services.requests.add(self._record)
        async with AsyncExitStack() as stack:
            for number, prompt in enumerate(self._prompts):
                generation = await stack.enter_async_context(
                    self._services.engine.generate(prompt.input, self._params, prompt.contents)
                )
                self._generations.append(generation)
                self._record.engine_ids.append(generation.request_id)
                generation.on_late_event = partial(self._note_late, number * self.num_choices)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
        for index in range(self.num_results):
            if index not in self._ends:
                self._keep(index)  # the rest comes later, if at all

    @property
    def ends(self) -> list[Finished]:
        """How the choices ended that have, by index."""
        return [self._ends[index] for index in sorted(self._ends)]

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield (index of the choice, event); progress comes under a prompt's first choice.

        The prompts run side by side in the engine, but are read one after the other: no client
        can tell the difference but by the order of the events.
        """
        for number, generation in enumerate(self._generations):
            first = number * self.num_choices
            async for event in generation:
                if isinstance(event, PromptProgress):
                    yield first, event
                    continue
                index = first + event.choice
                self._note(index, event)
                yield index, event

    async def gather(self) -> list[ChoiceResult]:
        """Do all of it and return each choice in one piece."""
        results = [ChoiceResult() for _ in range(self.num_results)]
        async with self:
            async for index, event in self.events():
                results[index].add(event)
        return results

    def _note_late(self, first: int, event: Delta | Finished) -> None:
        """Complete the record of a client that has left; its line in the log was written."""
        self._note(first + event.choice, event)

    def _note(self, index: int, event: Delta | Finished) -> None:
        if isinstance(event, Delta):
            self._sampled[index].add(event.text, event.tokens)
        else:
            self._note_end(index, event)
            self._sampled[index].is_complete = event.reason in ("eos", "stop_string")
            self._keep(index)

    def _keep(self, index: int) -> None:
        """Keep the tokens of a choice for the request that will send it back."""
        prompt = self._prompts[index // self.num_choices]
        if prompt.reply is not None:
            self._keeper.keep_reply(
                prompt.reply,
                self._sampled[index],
                lambda token: self._params.special or token in prompt.input.shown_tokens,
            )

    def _note_end(self, index: int, end: Finished) -> None:
        self._ends[index] = end
        self._record.num_decoded_tokens += end.timings.predicted_n
        if index % self.num_choices == 0:
            prompt = self._prompts[index // self.num_choices].input
            if prompt.media:  # what they take is known to the engine only
                self._record.num_prompt_tokens += end.num_prompt_tokens - prompt.num_tokens
            self._record.num_cached_tokens += end.timings.cache_n
            self._record.ends.append(end)


def plan_completion(
    services: Services,
    prompts: Sequence[Prompt],
    params: GenerationParams,
    record: RequestRecord,
) -> Completion:
    """Return a completion that is ready to start.

    Raises InvalidRequest for an empty prompt, ContextExceeded for one that is too long, and
    Unavailable while there is no model.
    """
    num_context_tokens = services.model.num_context_tokens
    for prompt in prompts:
        num_tokens = prompt.input.num_tokens
        if num_tokens == 0 and not prompt.input.media:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if num_tokens >= num_context_tokens:
            raise ContextExceeded(num_tokens, num_context_tokens)
    if prompts and (replies := prompts[0].replies) is not None:
        record.replies, record.history_keys = replies.counts, replies.history_keys
    record.num_prompt_tokens = sum(prompt.input.num_tokens for prompt in prompts)
    return Completion(services, prompts, params, record)

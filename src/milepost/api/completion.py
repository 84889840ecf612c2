"""The use case that all dialects share: prompts and parameters in, events of choices out.

Checks what can be checked before the engine works, opens one generation for each prompt, and
yields their events under the index that a choice has in the answer: prompt by prompt, each with
`num_choices` choices. Dialects turn events into their shapes; what their streams have in common,
the order of frames and running timings, is here as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from milepost.api.gate import RequestRecord
from milepost.api.generation_fields import AnswerOptions
from milepost.api.server import ServedModel, Server
from milepost.api.shapes import ChoiceResult, TimingsShape, timings_shape
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
    Timings,
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
        return MediaContents(self.files.held, self.files.read_content) if self.files else NO_MEDIA


class Completion:
    """A request at work.

    Entering lists it among the requests and sends it to the engine, or raises QueueFull; leaving
    stops what still runs.
    """

    def __init__(
        self,
        server: Server,
        model: ServedModel,
        prompts: Sequence[Prompt],
        params: GenerationParams,
        record: RequestRecord,
    ) -> None:
        assert prompts, "a request has at least one prompt"
        self._requests = server.requests
        self._engine = model.engine
        self._prompts = prompts
        self._params = params
        self._record = record
        self._stack = AsyncExitStack()
        self._generations: list[Generation] = []
        self._ends: dict[int, Finished] = {}
        self.num_choices = params.num_choices  # of each prompt
        self.num_results = len(prompts) * self.num_choices  # of all prompts
        self._sampled = [SampledReply() for _ in range(self.num_results)]
        self._keeper = ReplyKeeper(model.replies, model.vocab)

    async def __aenter__(self) -> Completion:
        # Several prompts are let in together: a request that always had too many could not be sent.
        self._engine.check_room(self.num_choices)
        self._requests.add(self._record)
        async with AsyncExitStack() as stack:
            for number, prompt in enumerate(self._prompts):
                generation = await stack.enter_async_context(
                    self._engine.generate(prompt.input, self._params, prompt.contents)
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
    server: Server,
    model: ServedModel,
    prompts: Sequence[Prompt],
    params: GenerationParams,
    record: RequestRecord,
) -> Completion:
    """Return a completion that is ready to start.

    Raises InvalidRequest for an empty prompt, ContextExceeded for one that is too long, and
    Unavailable while there is no model.
    """
    num_context_tokens = model.info.num_context_tokens
    for prompt in prompts:
        num_tokens = prompt.input.num_tokens
        if num_tokens == 0 and not prompt.input.media:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if num_tokens >= num_context_tokens:
            raise ContextExceeded(num_tokens, num_context_tokens)
    if prompts and (replies := prompts[0].replies) is not None:
        record.replies, record.history_keys = replies.counts, replies.history_keys
    record.model_name = model.name
    record.num_prompt_tokens = sum(prompt.input.num_tokens for prompt in prompts)
    return Completion(server, model, prompts, params, record)


class RunningTimings:
    """Timings of choices that are not finished, from what the front end sees of them.

    The exact ones come with `Finished`; these serve clients that show a rate while they read.
    """

    def __init__(self, num_results: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._progress: PromptProgress | None = None
        self._first_token_s: list[float | None] = [None] * num_results

    def note_progress(self, progress: PromptProgress) -> None:
        """Take the latest progress of the prefill."""
        self._progress = progress

    def after_tokens(self, index: int, num_decoded: int) -> TimingsShape:
        """Return the timings of a choice that has just got its `num_decoded`th token."""
        now_s = self._clock()
        first_s = self._first_token_s[index]
        if first_s is None:
            first_s = self._first_token_s[index] = now_s
        progress = self._progress
        num_cached = progress.num_cached if progress else 0
        return timings_shape(
            Timings(
                cache_n=num_cached,
                prompt_n=progress.num_processed - num_cached if progress else 0,
                prompt_ms=progress.elapsed_ms if progress else 0.0,
                predicted_n=num_decoded,
                predicted_ms=1e3 * (now_s - first_s),
            )
        )


class CompletionStream(ABC):
    """A `StreamSource` over a completion; a dialect says what each frame holds.

    A method that returns empty bytes sends nothing.
    """

    def __init__(
        self, completion: Completion, options: AnswerOptions, clock: Callable[[], float]
    ) -> None:
        self.completion = completion
        self.options = options
        self.num_decoded = [0] * completion.num_results  # tokens seen so far, per choice
        self._running = RunningTimings(completion.num_results, clock)

    async def __aenter__(self) -> CompletionStream:
        await self.completion.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.completion.__aexit__(*exc_info)

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames of the stream."""
        if frame := self.begin():
            yield frame
        async for index, event in self.completion.events():
            if isinstance(event, Delta):
                frame = self._delta_frame(index, event)
            elif isinstance(event, Finished):
                frame = self.finish(index, event)
            else:
                self._running.note_progress(event)
                frame = self.progress(index, event) if self.options.progress else b""
            if frame:
                yield frame
        if frame := self.end():
            yield frame

    def _delta_frame(self, index: int, delta: Delta) -> bytes:
        self.num_decoded[index] += len(delta.tokens)
        timings = None
        if self.options.timings_per_token:
            timings = self._running.after_tokens(index, self.num_decoded[index])
        if not (delta.text or delta.logprobs or (self.options.tokens and delta.tokens)):
            return b""  # text is held back: it may become a stop string or a character
        return self.delta(index, delta, timings)

    @abstractmethod
    def begin(self) -> bytes:
        """Return what is sent at once, before the prefill."""

    @abstractmethod
    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Return the frame for the progress of a prefill."""

    @abstractmethod
    def delta(self, index: int, delta: Delta, timings: TimingsShape | None) -> bytes:
        """Return the frame for new text."""

    @abstractmethod
    def finish(self, index: int, end: Finished) -> bytes:
        """Return the frame for the end of a choice."""

    @abstractmethod
    def end(self) -> bytes:
        """Return what ends the stream."""

"""What streams of all dialects have in common: the order of frames and running timings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

from milepost.api.completion import Completion
from milepost.api.generation_fields import AnswerWishes
from milepost.api.shapes import TimingsShape, timings_shape
from milepost.protocol.messages import Delta, Finished, PromptProgress, Timings


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
        self, completion: Completion, wishes: AnswerWishes, clock: Callable[[], float]
    ) -> None:
        self.completion = completion
        self.wishes = wishes
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
                frame = self.progress(index, event) if self.wishes.progress else b""
            if frame:
                yield frame
        if frame := self.end():
            yield frame

    def _delta_frame(self, index: int, delta: Delta) -> bytes:
        self.num_decoded[index] += len(delta.tokens)
        timings = None
        if self.wishes.timings_per_token:
            timings = self._running.after_tokens(index, self.num_decoded[index])
        if not (delta.text or delta.logprobs or (self.wishes.tokens and delta.tokens)):
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

"""Output records that several dialects share; encoded with msgspec, because each token costs one.

A field that is `UNSET` is left out of the JSON.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from milepost import __version__
from milepost.protocol.messages import (
    Delta,
    Finished,
    FinishReason,
    PromptProgress,
    Timings,
    TokenLogprob,
)

SYSTEM_FINGERPRINT = f"milepost-{__version__}"
LOWEST_LOGPROB = -9999.0  # OpenAI's word for "very unlikely"; JSON has no -inf

OPENAI_FINISH_REASONS: dict[FinishReason, str] = {
    "eos": "stop",
    "stop_string": "stop",
    "limit": "length",
    "context_full": "length",
    "cancelled": "stop",
}


class TimingsShape(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's `timings`."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class ProgressShape(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's `prompt_progress`."""

    total: int
    cache: int
    processed: int
    time_ms: float


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Part of `usage`."""

    cached_tokens: int


class UsageShape(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `usage`."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprobShape(msgspec.Struct, frozen=True, kw_only=True):
    """One rival of a sampled token."""

    id: int
    token: str
    bytes: tuple[int, ...]
    logprob: float


class LogprobShape(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled token, in OpenAI's chat shape with llama-server's `id`."""

    id: int
    token: str
    bytes: tuple[int, ...]
    logprob: float
    top_logprobs: tuple[TopLogprobShape, ...]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is the same in all parts of one answer."""

    id: str
    created: int
    model: str


def make_head(prefix: str, model: str) -> AnswerHead:
    """Return the head of a new answer, with an id like `chatcmpl-…`."""
    return AnswerHead(f"{prefix}-{secrets.token_hex(16)}", int(time.time()), model)


def timings_shape(timings: Timings) -> TimingsShape:
    """Return timings with the rates that follow from them; a rate over nothing is 0."""
    return TimingsShape(
        cache_n=timings.cache_n,
        prompt_n=timings.prompt_n,
        prompt_ms=timings.prompt_ms,
        prompt_per_token_ms=_ratio(timings.prompt_ms, timings.prompt_n),
        prompt_per_second=1e3 * _ratio(timings.prompt_n, timings.prompt_ms),
        predicted_n=timings.predicted_n,
        predicted_ms=timings.predicted_ms,
        predicted_per_token_ms=_ratio(timings.predicted_ms, timings.predicted_n),
        predicted_per_second=1e3 * _ratio(timings.predicted_n, timings.predicted_ms),
    )


def progress_shape(progress: PromptProgress) -> ProgressShape:
    """Return the progress of a prefill as llama-server reports it."""
    return ProgressShape(
        total=progress.num_tokens,
        cache=progress.num_cached,
        processed=progress.num_processed,
        time_ms=progress.elapsed_ms,
    )


def logprob_shapes(logprobs: Iterable[TokenLogprob]) -> tuple[LogprobShape, ...]:
    """Return logprobs in OpenAI's chat shape."""
    return tuple(
        LogprobShape(
            id=entry.token,
            token=entry.token_bytes.decode(errors="replace"),
            bytes=tuple(entry.token_bytes),
            logprob=max(entry.logprob, LOWEST_LOGPROB),
            top_logprobs=tuple(
                TopLogprobShape(
                    id=token,
                    token=piece.decode(errors="replace"),
                    bytes=tuple(piece),
                    logprob=max(logprob, LOWEST_LOGPROB),
                )
                for token, piece, logprob in entry.top
            ),
        )
        for entry in logprobs
    )


@dataclass(slots=True)
class ChoiceResult:
    """All of one choice, gathered for an answer in one piece."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, event: Delta | Finished | PromptProgress) -> None:
        """Take the next event of the choice."""
        if isinstance(event, Delta):
            self.texts.append(event.text)
            self.tokens.extend(event.tokens)
            self.logprobs.extend(event.logprobs)
        elif isinstance(event, Finished):
            self.finished = event

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def end(self) -> Finished:
        """How the choice ended; only after it did."""
        assert self.finished is not None, "a choice is read before it has ended"
        return self.finished


def usage_shape(ends: Sequence[Finished], num_choices: int) -> UsageShape:
    """Return the sum over all choices; choices of one prompt, which follow each other, share it."""
    firsts = ends[::num_choices]
    num_prompt = sum(end.num_prompt_tokens for end in firsts)
    num_decoded = sum(end.timings.predicted_n for end in ends)
    return UsageShape(
        completion_tokens=num_decoded,
        prompt_tokens=num_prompt,
        total_tokens=num_prompt + num_decoded,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(end.timings.cache_n for end in firsts)
        ),
    )


def sum_timings(ends: Sequence[Finished], num_choices: int) -> TimingsShape:
    """Return timings of an answer with several choices, which ran side by side."""
    firsts = ends[::num_choices]
    return timings_shape(
        Timings(
            cache_n=sum(end.timings.cache_n for end in firsts),
            prompt_n=sum(end.timings.prompt_n for end in firsts),
            prompt_ms=sum(end.timings.prompt_ms for end in firsts),
            predicted_n=sum(end.timings.predicted_n for end in ends),
            predicted_ms=max(end.timings.predicted_ms for end in ends),
        )
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0

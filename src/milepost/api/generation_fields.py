"""Fields of a request that steer a generation and its answer, whatever the dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milepost.api.fields import Boolean, Integer, RequestModel
from milepost.api.sampling_fields import (
    INT32_MAX,
    SamplingContext,
    SamplingFields,
    build_sampling_params,
    check_range,
)
from milepost.api.services import Services
from milepost.api.token_fields import parse_stop
from milepost.config import Settings
from milepost.errors import InvalidRequest, NotSupported
from milepost.protocol.messages import GenerationParams


class StreamOptions(RequestModel):
    """OpenAI's `stream_options`."""

    include_usage: Boolean | None = None


class GenerationFields(SamplingFields):
    """What all generating endpoints take."""

    model: Any = None
    stream: Boolean | None = None
    stream_options: StreamOptions | None = None
    stop: Any = None
    n_predict: Integer | None = None
    max_completion_tokens: Integer | None = None
    max_tokens: Integer | None = None
    n_cmpl: Integer | None = None
    n: Integer | None = None
    n_probs: Integer | None = None
    cache_prompt: Boolean | None = None
    return_tokens: Boolean | None = None
    return_progress: Boolean | None = None
    timings_per_token: Boolean | None = None
    sse_ping_interval: Integer | None = None
    json_schema: Any = None  # read by structured_fields
    response_format: Any = None
    post_sampling_probs: Boolean | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWishes:
    """How the answer is wanted."""

    stream: bool
    include_usage: bool
    progress: bool
    timings_per_token: bool
    tokens: bool
    logprobs: bool
    ping_interval_s: int  # <= 0: no pings


def build_params(
    fields: GenerationFields, services: Services, num_logprobs: int
) -> GenerationParams:
    """Return the parameters of a generation; raises InvalidRequest for the first bad field."""
    _check_unsupported(fields)
    context = SamplingContext(
        defaults=services.settings.sampling,
        vocab=services.vocab,
        num_context_tokens=services.model.num_context_tokens,
    )
    return GenerationParams(
        sampling=build_sampling_params(fields, context),
        max_tokens=_choose_max_tokens(fields, services.settings),
        stop=parse_stop(fields.stop),
        num_choices=_choose_num_choices(fields, services.model.num_parallel),
        num_logprobs=min(num_logprobs, services.vocab.num_tokens),
        cache_prompt=fields.cache_prompt is not False,
        wants_progress=bool(fields.return_progress or fields.timings_per_token),
        special=services.settings.special,
    )


def read_wishes(fields: GenerationFields, settings: Settings, num_logprobs: int) -> AnswerWishes:
    """Return how the answer is wanted."""
    interval_s = settings.server.sse_ping_interval_s
    if fields.sse_ping_interval is not None:
        check_range("sse_ping_interval", fields.sse_ping_interval, -1, INT32_MAX)
        interval_s = fields.sse_ping_interval
    options = fields.stream_options
    return AnswerWishes(
        stream=bool(fields.stream),
        include_usage=bool(options and options.include_usage),
        progress=bool(fields.return_progress),
        timings_per_token=bool(fields.timings_per_token),
        tokens=bool(fields.return_tokens),
        logprobs=num_logprobs >= 0,
        ping_interval_s=interval_s,
    )


def read_n_probs(fields: GenerationFields) -> int:
    """Return llama-server's `n_probs` as a number of logprobs: 0 asks for none, which is -1."""
    if fields.n_probs is None:
        return -1
    check_range("n_probs", fields.n_probs, 0, INT32_MAX)
    return fields.n_probs or -1


def _check_unsupported(fields: GenerationFields) -> None:
    if fields.post_sampling_probs:
        raise NotSupported(
            "'post_sampling_probs' is not supported; probabilities are those before sampling",
            param="post_sampling_probs",
        )


def _choose_max_tokens(fields: GenerationFields, settings: Settings) -> int:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value = getattr(fields, name)
        if value is not None:
            check_range(name, value, -1, INT32_MAX)
            return int(value)
    return settings.n_predict


def _choose_num_choices(fields: GenerationFields, num_parallel: int) -> int:
    name, value = ("n", fields.n) if fields.n_cmpl is None else ("n_cmpl", fields.n_cmpl)
    if value is None:
        return 1
    if not 1 <= value <= num_parallel:
        raise InvalidRequest(
            f"'{name}' is {value}, but this server decodes {num_parallel} sequences at a time; "
            f"ask for 1 to {num_parallel} choices, or start the server with a larger -np",
            param=name,
        )
    return value

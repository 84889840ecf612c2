"""Fields of a request that steer a generation and its answer, whatever the dialect.

Names, aliases and bounds are llama-server's. As there, some bounds clamp and others refuse; what
llama-server ignores silently (an unknown sampler, a token outside the vocabulary) is refused here
with a sentence. `grammar` is llama.cpp's and goes to the engine as it is; JSON schemas become
grammars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.api.http_body import Boolean, Integer, Number, RequestModel, Text, field_error, quote
from milepost.api.server import ServedModel
from milepost.api.token_fields import parse_logit_bias, parse_samplers, parse_sequence_breakers
from milepost.chat.formats.grammar_writer import Schema
from milepost.chat.replies.reply_plan import make_value_constraint
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.chat.vocab import Vocab
from milepost.config import ServerSettings
from milepost.errors import InvalidRequest, NotSupported
from milepost.protocol.messages import GenerationParams
from milepost.protocol.sampling import SamplingParams

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38  # larger ones would be infinite in the native library
CLAMPED: dict[str, tuple[float, float]] = {
    "temperature": (0.0, FLOAT32_MAX),
    "top_k": (0, INT32_MAX),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat": (0, 2),
    "adaptive_target": (-FLOAT32_MAX, 1.0),
}
REFUSED: dict[str, tuple[float, float]] = {
    # -1 is the whole context; llama-server took it for years and clients still send it
    "repeat_last_n": (-1, INT32_MAX),
    "dry_penalty_last_n": (-1, INT32_MAX),
    "dry_allowed_length": (0, INT32_MAX),
    "min_keep": (0, INT32_MAX),
    "adaptive_decay": (0.0, 0.99),
}
PLAIN = (
    "dynatemp_range",
    "dynatemp_exponent",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "mirostat_tau",
    "mirostat_eta",
    "ignore_eos",
    "grammar",
)
ANY_OBJECT: Schema = {"type": "object"}


class SamplingFields(RequestModel):
    """Sampling fields that every dialect takes."""

    samplers: Any = None
    seed: Integer | None = None
    min_keep: Integer | None = None
    temperature: Number | None = None
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    top_k: Integer | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    top_n_sigma: Number | None = None
    xtc_probability: Number | None = None
    xtc_threshold: Number | None = None
    repeat_last_n: Integer | None = None
    repeat_penalty: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    dry_multiplier: Number | None = None
    dry_base: Number | None = None
    dry_allowed_length: Integer | None = None
    dry_penalty_last_n: Integer | None = None
    dry_sequence_breakers: Any = None
    mirostat: Integer | None = None
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    adaptive_target: Number | None = None
    adaptive_decay: Number | None = None
    logit_bias: Any = None
    ignore_eos: Boolean | None = None
    grammar: Text | None = None


@dataclass(frozen=True, slots=True)
class SamplingContext:
    """What the fields are read against."""

    defaults: SamplingParams
    vocab: Vocab
    num_context_tokens: int


def build_sampling_params(fields: SamplingFields, context: SamplingContext) -> SamplingParams:
    """Return the defaults with what the request changes; raises InvalidRequest."""
    changes: dict[str, Any] = {}
    for name in (*CLAMPED, *REFUSED, *PLAIN):
        value = getattr(fields, name)
        if value is not None:
            changes[name] = _bounded(name, value)
    if fields.seed is not None:
        changes["seed"] = fields.seed % 2**32  # -1 becomes RANDOM_SEED, longer seeds wrap
    if changes.get("dry_base", 1.0) < 1.0:
        del changes["dry_base"]  # llama-server's rule: the default takes its place
    if fields.samplers is not None:
        changes["samplers"] = parse_samplers(fields.samplers)
    if fields.dry_sequence_breakers is not None:
        changes["dry_sequence_breakers"] = parse_sequence_breakers(fields.dry_sequence_breakers)
    if fields.logit_bias is not None:
        changes["logit_bias"] = parse_logit_bias(fields.logit_bias, context.vocab)
    return _fit(msgspec.structs.replace(context.defaults, **changes), context)


def check_range(param: str, value: float, lowest: float, highest: float) -> None:
    """Raise InvalidRequest unless `lowest <= value <= highest`."""
    if not lowest <= value <= highest:
        raise field_error(param, f"must be between {lowest} and {highest}", value)


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
    json_schema: Any = None  # see `read_schema`
    response_format: Any = None
    post_sampling_probs: Boolean | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How the answer is wanted."""

    stream: bool
    include_usage: bool
    progress: bool
    timings_per_token: bool
    tokens: bool
    logprobs: bool
    ping_interval_s: int  # <= 0: no pings


def build_params(
    fields: GenerationFields, model: ServedModel, num_logprobs: int
) -> GenerationParams:
    """Return the parameters of a generation; raises InvalidRequest for the first bad field."""
    _check_unsupported(fields)
    context = SamplingContext(
        defaults=model.settings.sampling,
        vocab=model.vocab,
        num_context_tokens=model.info.num_context_tokens,
    )
    return GenerationParams(
        sampling=build_sampling_params(fields, context),
        max_tokens=_choose_max_tokens(fields, model.settings.n_predict),
        stop=parse_stop(fields.stop),
        num_choices=_choose_num_choices(fields, model.info.num_parallel),
        num_logprobs=min(num_logprobs, model.vocab.num_tokens),
        cache_prompt=fields.cache_prompt is not False,
        wants_progress=bool(fields.return_progress or fields.timings_per_token),
        special=model.settings.special,
    )


def read_answer_options(
    fields: GenerationFields, server: ServerSettings, num_logprobs: int
) -> AnswerOptions:
    """Return how the answer is wanted."""
    interval_s = server.sse_ping_interval_s
    if fields.sse_ping_interval is not None:
        check_range("sse_ping_interval", fields.sse_ping_interval, -1, INT32_MAX)
        interval_s = fields.sse_ping_interval
    options = fields.stream_options
    return AnswerOptions(
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


def parse_stop(value: Any) -> tuple[str, ...]:
    """Return the stop strings of a request: one string or a list; empty ones are dropped."""
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise field_error("stop", "must be a string or a list of strings", value)
    return tuple(dict.fromkeys(text for text in texts if text))


def parse_response_format(value: object, checker: GrammarChecker) -> Schema | None:
    """Return the schema that `response_format` asks for, None for any text."""
    if value is None:
        return None
    kind = value.get("type", "text") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise _invalid(
            "response_format",
            'must be an object with the type "text", "json_object" or "json_schema", '
            f"but is {quote(value)}",
        )
    if kind == "text":
        return None
    where, inner = "response_format", value
    if isinstance(value.get("json_schema"), dict):  # OpenAI's nesting; llama-server has neither
        where, inner = "response_format.json_schema", value["json_schema"]
    if inner.get("schema") is None:
        if kind == "json_schema":
            raise _invalid(f"{where}.schema", "is missing; send the JSON schema there")
        return ANY_OBJECT
    is_exact = inner.get("strict") is True
    return prepare_schema(inner["schema"], f"{where}.schema", checker, is_exact=is_exact)


def read_schema(fields: GenerationFields, checker: GrammarChecker) -> Schema | None:
    """Return the schema of the text, None for any text.

    Raises InvalidRequest for a bad one, with its place, and for two fields that both constrain.
    """
    schema = parse_response_format(fields.response_format, checker)
    if fields.json_schema is not None:
        if schema is not None:
            raise _conflict("json_schema", "response_format")
        schema = prepare_schema(fields.json_schema, "json_schema", checker, is_exact=False)
    if schema is not None and fields.grammar:
        name = "response_format" if fields.json_schema is None else "json_schema"
        raise _conflict("grammar", name)
    return schema


def make_text_constraint(fields: GenerationFields, checker: GrammarChecker) -> str:
    """Return the grammar that the fields ask for, "" for none: all of the text is the value."""
    schema = read_schema(fields, checker)
    return "" if schema is None else make_value_constraint(schema, checker)


def _bounded(name: str, value: Any) -> Any:
    if name in REFUSED:
        check_range(name, value, *REFUSED[name])
        return value
    if name in CLAMPED:
        lowest, highest = CLAMPED[name]
        return max(lowest, min(highest, value))
    if isinstance(value, float):
        return max(-FLOAT32_MAX, min(FLOAT32_MAX, value))
    return value


def _fit(params: SamplingParams, context: SamplingContext) -> SamplingParams:
    """Keep the samplers' ring buffers within the context: they are allocated in full."""
    longest = context.num_context_tokens
    return msgspec.structs.replace(
        params,
        repeat_last_n=min(params.repeat_last_n, longest),
        dry_penalty_last_n=min(params.dry_penalty_last_n, longest),
        min_keep=min(params.min_keep, context.vocab.num_tokens),
    )


def _check_unsupported(fields: GenerationFields) -> None:
    if fields.post_sampling_probs:
        raise NotSupported(
            "'post_sampling_probs' is not supported; probabilities are those before sampling",
            param="post_sampling_probs",
        )


def _choose_max_tokens(fields: GenerationFields, default: int) -> int:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value = getattr(fields, name)
        if value is not None:
            check_range(name, value, -1, INT32_MAX)
            return int(value)
    return default


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


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)


def _conflict(first: str, second: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{first}' and '{second}' both say what the text must look like; send one of them",
        param=first,
    )

"""The sampling fields of a request, and how they become one `SamplingParams`.

Names, aliases and bounds are llama-server's. As there, some bounds clamp and others refuse; what
llama-server ignores silently (an unknown sampler, a token outside the vocabulary) is refused here
with a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.api.fields import Boolean, Integer, Number, RequestModel, Text, field_error
from milepost.api.token_fields import parse_logit_bias, parse_samplers, parse_sequence_breakers
from milepost.chat.vocab import Vocab
from milepost.protocol.sampling import SamplingParams

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38  # larger ones would be infinite in the native library


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

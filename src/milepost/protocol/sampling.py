"""How the next token of a request is chosen: one record for all dialects.

Field names and meanings are llama-server's, so that what its documents say holds here too.
Bounds are checked where a request enters (`milepost.api.generation_fields`), not here.
"""

from __future__ import annotations

import msgspec

RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's LLAMA_DEFAULT_SEED: draw a seed for each request

# llama-server's letters for a sequence of samplers.
SAMPLER_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}
SAMPLER_NAMES = tuple(SAMPLER_LETTERS.values())
_PLAIN_NAMES = {
    **{name.replace("_", ""): name for name in SAMPLER_NAMES},
    "temp": "temperature",
    "nucleus": "top_p",
    "typ": "typ_p",
    "typical": "typ_p",
    "typicalp": "typ_p",
}
DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling settings of one request; the defaults are llama-server's."""

    samplers: tuple[str, ...] = DEFAULT_SAMPLERS  # applied in this order
    seed: int = RANDOM_SEED  # 0 ..= 2**32 - 1
    min_keep: int = 0

    temperature: float = 0.8  # <= 0: always the most likely token
    dynatemp_range: float = 0.0  # 0: off
    dynatemp_exponent: float = 1.0
    top_k: int = 40  # <= 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical_p: float = 1.0  # 1: off
    top_n_sigma: float = -1.0  # <= 0: off
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1  # > 0.5: off

    repeat_last_n: int = 64  # tokens looked back on; 0: off, -1: the whole context
    repeat_penalty: float = 1.0  # 1: off
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2  # tokens
    dry_penalty_last_n: int = -1  # tokens looked back on; 0: off, -1: the whole context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")

    mirostat: int = 0  # 0: off, 1, 2
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    adaptive_target: float = -1.0  # < 0: off
    adaptive_decay: float = 0.9

    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, bias); -inf bans the token
    ignore_eos: bool = False
    grammar: str = ""  # GBNF; empty: unconstrained


def find_sampler(name: str) -> str | None:
    """Return the sampler that a client or a flag means by a name, None for an unknown one."""
    return _PLAIN_NAMES.get(name.strip().lower().replace("-", "").replace("_", ""))

"""Request fields that need the vocabulary or have several forms: logit_bias, samplers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from milepost.api.http_body import field_error, quote
from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest
from milepost.protocol.sampling import SAMPLER_LETTERS, SAMPLER_NAMES, find_sampler

MAX_BIAS = 3.4028234663852886e38  # largest float32


def parse_samplers(value: Any) -> tuple[str, ...]:
    """Return sampler names in order, from a list of names or a string of letters ("edkypmxt")."""
    if isinstance(value, str):
        return tuple(_sampler_of_char(char) for char in value)
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(_sampler_of_name(name) for name in value)
    raise field_error("samplers", "must be a list of sampler names or a string of letters", value)


def parse_sequence_breakers(value: Any) -> tuple[str, ...]:
    """Return the strings that end a repetition for DRY; the list must not be empty."""
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise field_error("dry_sequence_breakers", "must be a list with at least one string", value)


def parse_logit_bias(value: Any, vocab: Vocab) -> tuple[tuple[int, float], ...]:
    """Return (token, bias) pairs; `false` as bias bans a token, which is -inf.

    Takes OpenAI's object `{"15043": 1.5}` and llama-server's list `[[15043, 1.5]]`. A key that is
    not a number is a text; the bias then holds for each of its tokens.
    """
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs = ((int(key) if _is_integer(key) else key, bias) for key, bias in value.items())
    elif isinstance(value, list) and all(isinstance(e, list) and len(e) == 2 for e in value):
        pairs = ((key, bias) for key, bias in value)
    else:
        raise field_error(
            "logit_bias", "must be an object of token: bias or a list of [token, bias]", value
        )
    result: list[tuple[int, float]] = []
    for key, bias in pairs:
        number = _parse_bias(bias)
        result.extend((token, number) for token in _tokens_of_key(key, vocab))
    return tuple(result)


def _sampler_of_char(char: str) -> str:
    if char not in SAMPLER_LETTERS:
        raise InvalidRequest(
            f"'samplers' has the unknown letter {quote(char)}; "
            f"known are {', '.join(f'{key} ({name})' for key, name in SAMPLER_LETTERS.items())}",
            param="samplers",
        )
    return SAMPLER_LETTERS[char]


def _sampler_of_name(given: str) -> str:
    name = find_sampler(given)
    if name is None:
        raise InvalidRequest(
            f"'samplers' has the unknown name {quote(given)}; known are {', '.join(SAMPLER_NAMES)}",
            param="samplers",
        )
    return name


def _is_integer(key: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", key) is not None


def _parse_bias(bias: Any) -> float:
    if bias is False:
        return -math.inf
    if isinstance(bias, bool) or not isinstance(bias, (int, float)) or bias != bias:
        raise field_error("logit_bias", "must have numbers (or false) as biases", bias)
    return float(max(-MAX_BIAS, min(MAX_BIAS, bias)))


def _tokens_of_key(key: Any, vocab: Vocab) -> list[int]:
    if isinstance(key, str):
        return vocab.tokenize(key, add_special=False, parse_special=False)
    if isinstance(key, bool) or not isinstance(key, int):
        raise field_error("logit_bias", "must have token numbers or texts as keys", key)
    if not 0 <= key < vocab.num_tokens:
        raise field_error(
            "logit_bias", f"must have tokens between 0 and {vocab.num_tokens - 1}", key
        )
    return [key]

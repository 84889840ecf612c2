"""Text of a flag or an environment variable -> value, with bounds.

Pure but for `text_file`, which reads the named file. A parser raises ValueError with what is wanted
("must be ..."); `milepost.cli.collect` makes the sentence that names flag and value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.config.engine import ALL_LAYERS, AUTO_PARALLEL
from milepost.config.flag import Flag
from milepost.protocol.sampling import RANDOM_SEED, SAMPLER_LETTERS, find_sampler

TRUE_WORDS = ("1", "true", "on", "enabled")
FALSE_WORDS = ("0", "false", "off", "disabled")
AUTO_WORDS = ("auto", "-1")

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def parse_value(text: str, default: object, flag: Flag) -> Any:
    """Return the value that `text` spells; its type is that of `default`, or the flag's kind's.

    Raises ValueError with a message that goes on after "--flag value ".
    """
    if flag.kind:
        return _PARSERS[flag.kind](text, flag)
    if flag.choices:
        return _parse_choice(text, flag)
    if isinstance(default, bool):
        return parse_bool(text)
    if isinstance(default, int):
        return _parse_int(text, flag)
    if isinstance(default, float):
        return _parse_float(text, flag)
    return text


def parse_bool(text: str) -> bool:
    """Return the truth of one of llama-server's words."""
    if text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS:
        return False
    raise ValueError(f"must be one of {', '.join(TRUE_WORDS + FALSE_WORDS)}")


def describe_bounds(flag: Flag) -> str:
    """Return the bounds of a number in words; empty without bounds."""
    if flag.minimum is not None and flag.maximum is not None:
        return f"from {_number(flag.minimum)} to {_number(flag.maximum)}"
    if flag.minimum is not None:
        return f"at least {_number(flag.minimum)}"
    if flag.above is not None:
        return f"above {_number(flag.above)}"
    if flag.maximum is not None:
        return f"at most {_number(flag.maximum)}"
    return ""


def _parse_choice(text: str, flag: Flag) -> str:
    if text not in flag.choices:
        raise ValueError(f"must be one of {', '.join(flag.choices)}")
    return text


def _parse_tristate(text: str, flag: Flag) -> str:
    if text in AUTO_WORDS:
        return "auto"
    try:
        return "on" if parse_bool(text) else "off"
    except ValueError:
        raise ValueError(f"must be one of {', '.join(flag.choices)}") from None


def _parse_int(text: str, flag: Flag) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(_wanted("a whole number", flag)) from None
    _check_bounds(value, "a whole number", flag)
    return value


def _parse_float(text: str, flag: Flag) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(_wanted("a number", flag)) from None
    if not math.isfinite(value):
        raise ValueError(_wanted("a finite number", flag))
    _check_bounds(value, "a number", flag)
    return value


def _check_bounds(value: float, noun: str, flag: Flag) -> None:
    too_low = (flag.minimum is not None and value < flag.minimum) or (
        flag.above is not None and value <= flag.above
    )
    if too_low or (flag.maximum is not None and value > flag.maximum):
        raise ValueError(_wanted(noun, flag))


def _wanted(noun: str, flag: Flag) -> str:
    bounds = describe_bounds(flag)
    return f"must be {noun} {bounds}".rstrip()


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def _parse_parallel(text: str, flag: Flag) -> int:
    if text in AUTO_WORDS:
        return AUTO_PARALLEL
    try:
        return _parse_int(text, flag)
    except ValueError as error:
        raise ValueError(f"{error}, or -1 for {AUTO_PARALLEL}") from None


def _parse_gpu_layers(text: str, flag: Flag) -> int:
    words = {"auto": -1, "-1": -1, "all": ALL_LAYERS, "-2": ALL_LAYERS}
    if text in words:
        return words[text]
    try:
        return _parse_int(text, flag)
    except ValueError as error:
        raise ValueError(f"{error}, auto or all") from None


def _parse_seed(text: str, flag: Flag) -> int:
    return RANDOM_SEED if text == "-1" else _parse_int(text, flag)


def _parse_host(text: str, flag: Flag) -> str:
    if not text or "," in text or text.endswith(".sock"):
        raise ValueError("must be one address; several, or a socket file, are not possible yet")
    return text


def _parse_mebibytes(text: str, flag: Flag) -> int:
    return _parse_int(text, flag) << 20


def _parse_csv(text: str, flag: Flag) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_proportions(text: str, flag: Flag) -> tuple[float, ...]:
    return tuple(_parse_float(part, flag) for part in text.replace("/", ",").split(","))


def _parse_json_object(text: str, flag: Flag) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError('must be a JSON object, for example {"enable_thinking": false}')
    return value


def _parse_samplers(text: str, flag: Flag) -> tuple[str, ...]:
    names = []
    for word in text.split(";"):
        name = find_sampler(word)
        if name is None:
            raise ValueError(
                f"has the unknown sampler {word.strip()!r}; there are "
                f"{', '.join(sorted(SAMPLER_LETTERS.values()))}, separated by semicolons"
            )
        names.append(name)
    return tuple(names)


def _parse_sampler_letters(text: str, flag: Flag) -> tuple[str, ...]:
    unknown = [letter for letter in text if letter not in SAMPLER_LETTERS]
    if unknown:
        raise ValueError(
            f"has the unknown letter {unknown[0]!r}; there are {''.join(SAMPLER_LETTERS)}"
        )
    return tuple(SAMPLER_LETTERS[letter] for letter in text)


def _parse_breakers(text: str, flag: Flag) -> tuple[str, ...]:
    return () if text == "none" else (_unescape(text),)


def _unescape(text: str) -> str:
    parts = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            parts.append(_ESCAPES.get(following, character + following))
        else:
            parts.append(character)
    return "".join(parts)


def _parse_logit_bias(text: str, flag: Flag) -> tuple[tuple[int, float], ...]:
    split = next((i for i, character in enumerate(text) if character in "+-" and i), None)
    try:
        if split is None:
            raise ValueError
        token, bias = int(text[:split]), float(text[split:])
    except ValueError:
        raise ValueError("must be a token number, a sign and a bias, as in 15043+1") from None
    if token < 0 or math.isnan(bias) or bias == math.inf:
        raise ValueError("must be a token number, a sign and a bias below infinity")
    return ((token, bias),)


def _parse_text_file(text: str, flag: Flag) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("is not a text in UTF-8") from None


_PARSERS: dict[str, Callable[[str, Flag], Any]] = {
    "breakers": _parse_breakers,
    "csv": _parse_csv,
    "gpu_layers": _parse_gpu_layers,
    "host": _parse_host,
    "json_object": _parse_json_object,
    "logit_bias": _parse_logit_bias,
    "mebibytes": _parse_mebibytes,
    "parallel": _parse_parallel,
    "proportions": _parse_proportions,
    "sampler_letters": _parse_sampler_letters,
    "samplers": _parse_samplers,
    "seed": _parse_seed,
    "text_file": _parse_text_file,
    "tristate": _parse_tristate,
}
LIST_KINDS = frozenset({"csv", "breakers", "logit_bias"})  # several occurrences are joined

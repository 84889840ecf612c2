"""From where a prompt goes on: the cheapest of all sources, by estimated time. Pure.

    time = what it costs besides + bytes / bandwidth + tokens left / prefill rate

The rates are measured while the engine runs. A source that holds more of the prompt but is slower
than computing the difference is refused, and named in the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SourceKind = Literal["zero", "kv_cache", "parked", "ram", "disk"]


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """A place to go on from; `index` is a slot for `kv_cache` and `parked`, else a stored state."""

    kind: SourceKind
    pos: int
    index: int = -1
    num_bytes: int = 0  # to be loaded; a rewound sequence loads its checkpoint only
    extra_s: float = 0.0  # e.g. to save what has to leave the slot


@dataclass(frozen=True, slots=True)
class RestoreRates:
    """What was measured; a rate of 0 is not known yet, and taken as infinitely fast."""

    prefill_tokens_per_s: float
    ram_bytes_per_s: float
    disk_bytes_per_s: float = 0.0
    load_s: float = 0.0  # for each load, whatever its size


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """The source taken, and the deeper ones that would have been slower."""

    source: RestoreSource
    estimated_s: float  # until the prompt is computed
    refused: tuple[RestoreSource, ...] = ()  # deepest first


ZERO = RestoreSource("zero", 0)


def estimate_s(source: RestoreSource, rates: RestoreRates, num_prompt_tokens: int) -> float:
    """Return the estimated time until the whole prompt is computed."""
    seconds = source.extra_s
    if source.num_bytes:
        rate = rates.disk_bytes_per_s if source.kind == "disk" else rates.ram_bytes_per_s
        seconds += rates.load_s + _divide(source.num_bytes, rate)
    return seconds + _divide(num_prompt_tokens - source.pos, rates.prefill_tokens_per_s)


def choose_restore(
    sources: Sequence[RestoreSource], rates: RestoreRates, num_prompt_tokens: int
) -> RestoreChoice:
    """Choose the source with the least estimated time, the deeper one of equals.

    Computing everything is always possible and need not be listed.
    """

    def cost(source: RestoreSource) -> tuple[float, int]:
        return estimate_s(source, rates, num_prompt_tokens), -source.pos

    chosen = min((*sources, ZERO), key=cost)
    refused = [source for source in sources if source.pos > chosen.pos]
    refused.sort(key=lambda source: -source.pos)
    return RestoreChoice(chosen, cost(chosen)[0], tuple(refused))


def _divide(amount: float, rate: float) -> float:
    return amount / rate if rate > 0 else 0.0

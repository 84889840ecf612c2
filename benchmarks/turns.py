"""Variants that take turns: a machine that drifts must not favour one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Variant = TypeVar("Variant")
Result = TypeVar("Result")


def measure_in_turns(
    variants: Sequence[Variant], repeats: int, measure: Callable[[Variant, int], Result]
) -> dict[Variant, list[Result]]:
    """Measure each variant once in every repeat, of which the number is passed on.

    Whoever goes first finds another machine than who goes later: with each repeat the order moves
    on by one. The results are in the order of the repeats.
    """
    results: dict[Variant, list[Result]] = {variant: [] for variant in variants}
    for repeat in range(repeats):
        first = repeat % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            results[variant].append(measure(variant, repeat))
    return results

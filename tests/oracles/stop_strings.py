"""What a text with stop strings must become, read off from the whole text so far."""

from __future__ import annotations

from collections.abc import Sequence


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Return begin and text of the stop string that begins first, of those the longest."""
    for start in range(len(text)):
        here = [one for one in stop if text.startswith(one, start)]
        if here:
            return start, max(here, key=len)
    return None


def may_become_stop(tail: str, stop: Sequence[str]) -> bool:
    """Return whether more text can turn a whole tail into a stop string."""
    return any(len(tail) < len(one) and one.startswith(tail) for one in stop)


def sent_until(text: str, stop: Sequence[str]) -> str:
    """Return the longest begin of a text without a stop string that may have been sent."""
    for start in range(len(text)):
        if may_become_stop(text[start:], stop):
            return text[:start]
    return text

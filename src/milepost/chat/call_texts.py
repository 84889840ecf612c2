"""What a template writes around tool calls, taken from renderings with one call and with two.

      header   lead    call 1   closing   lead    call 2   closing      trailer
    <|im_start|>…<tool_call>{…}</tool_call>\\n<tool_call>{…}</tool_call><|im_end|>

What a call itself is (its core: an object of JSON, a name with arguments) is found by the readers
of the single bodies, who give its place; what is around it is told here by comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from milepost.chat.probe_texts import (
    ANSWER,
    IDS,
    NAMES,
    RESULT,
    USER,
    Probe,
    answer,
    behind,
    between,
    call,
    calling,
    result,
    user,
)
from milepost.chat.reply_format import Affix, ReasoningFormat
from milepost.chat.text_pieces import shared_end, shared_start, split_pieces

# Finds a call with this number in a text: where it starts and ends; None if it is not there.
FindCore = Callable[[str, int], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class CallTexts:
    """Replies with tool calls, from behind the generation prompt on."""

    one: str  # one call, up to its result
    two: str | None  # two calls, up to the first result; None where a template takes only one
    last: str  # one call at the end of a conversation
    trailer: str  # what ends a message without calls


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around calls, white space at its outer ends left out."""

    section: Affix
    opening: str  # before each call
    closing: str  # behind each call
    separator: str


def read_call_texts(probe: Probe, reasoning: ReasoningFormat | None) -> CallTexts | None:
    """Render replies with calls; None for a template that does not write them."""
    one = between(
        probe.prompt(user(), calling(call(0)), result(), tools=True), USER, RESULT
    ) or behind(probe.history(user(), calling(call(0)), tools=True), USER)
    if one is None or NAMES[0] not in one:
        return None
    both = calling(call(0), call(1))
    two = between(probe.prompt(user(), both, result(0), result(1), tools=True), USER, RESULT)
    last = behind(probe.history(user(), calling(call(0)), tools=True), USER)
    trailer = behind(probe.history(user(), answer()), ANSWER) or ""
    header = _read_header(probe, reasoning)
    return CallTexts(
        _without_header(one, header, reasoning),
        None
        if two is None or NAMES[0] not in two or NAMES[1] not in two
        else _without_header(two, header, reasoning),
        _without_header(last if last and NAMES[0] in last else one, header, reasoning),
        trailer,
    )


def read_surroundings(texts: CallTexts, find_core: FindCore) -> Surroundings | None:
    """Return what is around the cores of calls, None if there are none."""
    place, last_place = find_core(texts.one, 0), find_core(texts.last, 0)
    if place is None or last_place is None:
        return None
    lead, rest = texts.one[: place[0]], _without_ids(texts.last[last_place[1] :])
    middle = _read_middle(texts, find_core)
    if middle is None:
        closing = rest[: _find_trailer(rest, texts.trailer)]
        return Surroundings(Affix(), lead.strip(), closing.strip(), "")
    opening = shared_end(lead, middle)
    behind_call = middle.removesuffix(opening)
    closing = shared_start(behind_call, rest)
    end = rest[len(closing) :]
    return Surroundings(
        Affix(lead.removesuffix(opening).strip(), end[: _find_trailer(end, texts.trailer)].strip()),
        opening.strip(),
        closing.strip(),
        behind_call.removeprefix(closing).strip(),
    )


def _read_middle(texts: CallTexts, find_core: FindCore) -> str | None:
    """Return what stands between two calls."""
    if texts.two is None:
        return None
    first, second = find_core(texts.two, 0), find_core(texts.two, 1)
    if first is None or second is None or second[0] < first[1]:
        return None
    return _without_ids(texts.two[first[1] : second[0]])


def _find_trailer(rest: str, trailer: str) -> int:
    """Return where the end of the message begins in what follows the last call."""
    trailer = trailer.strip()
    if not trailer:
        return len(rest)
    for wanted in (trailer, split_pieces(trailer)[0]):
        if wanted in rest:
            return rest.index(wanted)
    return len(rest)


def _read_header(probe: Probe, reasoning: ReasoningFormat | None) -> str:
    """Return what stands between the text of a user message and a reply."""
    header = probe.generation()
    if reasoning is not None and reasoning.start in header:
        header = header[: header.index(reasoning.start)]
    return header.rstrip()


def _without_header(text: str, header: str, reasoning: ReasoningFormat | None) -> str:
    """Return a reply without the header of its message and without empty reasoning."""
    text = text.removeprefix(header if text.startswith(header) else shared_start(text, header))
    if reasoning is not None:
        text = text.lstrip().removeprefix(reasoning.start).lstrip().removeprefix(reasoning.end)
    return text.lstrip()


def _without_ids(text: str) -> str:
    return text.replace(IDS[0], "").replace(IDS[1], "")

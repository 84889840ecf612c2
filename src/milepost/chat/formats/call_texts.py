"""What a template writes around tool calls, taken from renderings with one call and with two.

      header   lead    call 1  call.end   lead    call 2  call.end      trailer
    <|im_start|>…<tool_call>{…}</tool_call>\\n<tool_call>{…}</tool_call><|im_end|>

What a call itself is (its core: an object of JSON, a name with arguments) is found by the formats,
which give its place; what is around it is told here by comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.probe_texts import (
    ANSWER,
    IDS,
    LATER_USER,
    NAMES,
    OTHER_CALL,
    RESULT,
    USER,
    CallTexts,
    Probe,
    answer,
    between,
    call,
    calling,
    result,
    text_after,
    user,
)
from milepost.chat.formats.reply_format import Affix, ReasoningFormat
from milepost.chat.formats.text_pieces import TAG, first_tag, shared_end, shared_start

# Finds a call with this number in a text: where it starts and ends; None if it is not there.
FindCore = Callable[[str, int], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around calls, white space at its outer ends left out."""

    section: Affix  # around all calls
    call: Affix  # around each
    separator: str  # between two


def read_call_texts(probe: Probe, reasoning: ReasoningFormat | None) -> CallTexts | None:
    """Render replies with calls; None for a template that does not write them."""
    one = between(
        probe.prompt(user(), calling(call(0)), result(), tools=True), USER, RESULT
    ) or text_after(probe.history(user(), calling(call(0)), tools=True), USER)
    if one is None or NAMES[0] not in one:
        return None
    both = calling(call(0), call(1))
    two = between(probe.prompt(user(), both, result(0), result(1), tools=True), USER, RESULT)
    if two is not None and not all(name in two for name in NAMES):
        two = None
    last = text_after(probe.history(user(), calling(call(0)), tools=True), USER)
    if last is None or NAMES[0] not in last:
        last = one
    return CallTexts(
        without_header(probe, one, reasoning),
        None if two is None else without_header(probe, two, reasoning),
        without_header(probe, last, reasoning),
        between(probe.prompt(user(), calling(OTHER_CALL), result(), tools=True), USER, RESULT)
        or "",
        _read_trailers(probe),
    )


def read_surroundings(texts: CallTexts, find_core: FindCore) -> Surroundings | None:
    """Return what is around the cores of calls, None if there are none."""
    place, last_place = find_core(texts.one, 0), find_core(texts.last, 0)
    if place is None or last_place is None:
        return None
    lead, rest = texts.one[: place[0]], _without_ids(texts.last[last_place[1] :])
    middle = _read_middle(texts, find_core)
    if middle is None:
        end = _before_trailer(rest, texts.trailers)
        return Surroundings(Affix(), Affix(lead.strip(), end.strip()), "")
    call_start = shared_end(lead, middle)
    after_call = middle.removesuffix(call_start)
    call_end = shared_start(after_call, rest)
    start = lead.removesuffix(call_start).strip()
    end = _before_trailer(rest[len(call_end) :], texts.trailers).strip()
    if not end:  # some templates close the section of several calls only
        after_all_calls = _after_second(texts, find_core).removeprefix(call_end)
        end = _before_trailer(after_all_calls, texts.trailers).strip()
    return Surroundings(
        Affix(start, end) if start else Affix(),
        Affix(call_start.strip(), call_end.strip()),
        after_call.removeprefix(call_end).strip(),
    )


def find_object(text: str, marker: str, start: int = 0) -> tuple[int, int, Any] | None:
    """Return start, end and value of the outermost JSON object that holds a marker."""
    decoder = json.JSONDecoder()
    pos = text.find("{", start)
    while pos >= 0:
        try:
            value, end = decoder.raw_decode(text, pos)
        except (ValueError, RecursionError):
            end = pos
        if marker in text[pos:end]:
            return pos, end, value
        pos = text.find("{", pos + 1)
    return None


def split_call_start(start: str) -> tuple[str, str]:
    """Return the marker before a call, and what of its start belongs to the name."""
    tag = first_tag(start)
    if tag:
        return tag, start[len(tag) :].lstrip()
    return ("", start) if "<" in start else (start, "")


def bare_pattern(text: str) -> str:
    """Return a regular expression for a text without its white space."""
    return re.escape(without_space(text))


def without_space(text: str) -> str:
    """Return a text without its white space."""
    return re.sub(r"\s+", "", text)


def without_header(probe: Probe, text: str, reasoning: ReasoningFormat | None) -> str:
    """Return a reply, which begins after a user message, without header and empty reasoning."""
    header = max((shared_start(text, known) for known in _headers(probe, reasoning)), key=len)
    text = text.removeprefix(header).lstrip()
    if reasoning is not None:
        text = text.removeprefix(reasoning.start).lstrip().removeprefix(reasoning.end)
    return text.lstrip()


def _read_middle(texts: CallTexts, find_core: FindCore) -> str | None:
    """Return what stands between two calls."""
    if texts.two is None:
        return None
    first, second = find_core(texts.two, 0), find_core(texts.two, 1)
    if first is None or second is None or second[0] < first[1]:
        return None
    return _without_ids(texts.two[first[1] : second[0]])


def _after_second(texts: CallTexts, find_core: FindCore) -> str:
    place = find_core(texts.two or "", 1)
    return _without_ids((texts.two or "")[place[1] :]) if place else ""


def _read_trailers(probe: Probe) -> tuple[str, ...]:
    last = text_after(probe.history(user(), answer()), ANSWER) or ""
    earlier = between(probe.history(user(), answer(), user(LATER_USER)), ANSWER, LATER_USER) or ""
    tags = [match[0] for match in TAG.finditer(last + earlier)]
    return tuple(dict.fromkeys(tags or [last.strip()]))


def _before_trailer(rest: str, trailers: tuple[str, ...]) -> str:
    """Return what stands before the end of the message in what follows the last call."""
    return rest[: min((rest.index(each) for each in trailers if each in rest), default=None)]


def _headers(probe: Probe, reasoning: ReasoningFormat | None) -> Iterator[str]:
    """Yield what stands between the text of a user message and a reply, as far as it is known."""
    for header in (
        probe.generation(),
        between(probe.history(user(), answer(), user(LATER_USER)), USER, ANSWER) or "",
    ):
        if reasoning is not None and reasoning.start in header:
            yield header[: header.index(reasoning.start)].rstrip()
        else:
            yield header.rstrip()


def _without_ids(text: str) -> str:
    return text.replace(IDS[0], "").replace(IDS[1], "")

"""All formats of tool calls, and which of them a template shows.

A new format is a module with a subclass of `CallBody`, and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from milepost.chat.formats.braced_calls import BracedBody
from milepost.chat.formats.call_texts import bare_pattern, read_call_texts, without_space
from milepost.chat.formats.harmony import HarmonyBody
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.named_json_calls import NamedJsonBody
from milepost.chat.formats.probe_texts import IDS, KEYS, NAMES, VALUES, CallTexts, Probe
from milepost.chat.formats.pythonic_calls import PythonicBody
from milepost.chat.formats.reply_format import (
    CallBody,
    ReasoningFormat,
    ReplyFormat,
    ToolCallFormat,
)
from milepost.chat.formats.tagged_calls import TaggedBody

# In the order in which they are looked for: the later ones see less and less of a structure.
CALL_FORMATS: tuple[type[CallBody], ...] = (
    HarmonyBody,
    BracedBody,
    PythonicBody,
    JsonBody,
    NamedJsonBody,
    TaggedBody,
)
PROBE_WORDS = (*NAMES, *IDS, *KEYS[0], *KEYS[1], *VALUES[0], *VALUES[1])


def recognise_reply(
    probe: Probe,
    reasoning: ReasoningFormat | None,
    formats: Sequence[type[CallBody]] = CALL_FORMATS,
) -> ReplyFormat | None:
    """Return the format of replies where one of calls tells all of it, else None."""
    found = (body.recognise_reply(probe, reasoning) for body in formats)
    return next(filter(None, found), None)


def recognise_calls(
    probe: Probe,
    reasoning: ReasoningFormat | None,
    formats: Sequence[type[CallBody]] = CALL_FORMATS,
) -> ToolCallFormat | None:
    """Return what tool calls look like, None if the template does not show it."""
    texts = read_call_texts(probe, reasoning)
    if texts is not None:
        for body in formats:
            found = body.recognise_calls(texts)
            if found is not None and _explains(found, texts):
                return found
    explained = (body.recognise_explained(probe) for body in formats)
    return next(filter(None, explained), None)


def _explains(calls: ToolCallFormat, texts: CallTexts) -> bool:
    """Say whether a format writes the calls as the template does, white space aside."""
    if any(word in repr(calls) for word in PROBE_WORDS):
        return False
    numbers = (0,) if texts.two is None else (0, 1)
    patterns = [calls.body.probe_pattern(number) for number in numbers]
    if not patterns[0]:
        return True
    if not (calls.start_marker or calls.body.head):
        return False  # any text would look like a call
    start, end = bare_pattern(calls.call.start), bare_pattern(calls.call.end)
    written = bare_pattern(calls.separator).join(start + each + end for each in patterns)
    pattern = bare_pattern(calls.section.start) + written + bare_pattern(calls.section.end)
    return re.match(pattern, without_space(texts.two or texts.one)) is not None

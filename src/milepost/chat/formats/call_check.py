"""Checks a format of tool calls that was read: written with it, calls have to be as rendered."""

from __future__ import annotations

import json
import re

from milepost.chat.formats.call_texts import CallTexts
from milepost.chat.formats.probe_texts import IDS, KEYS, NAMES, VALUES
from milepost.chat.formats.reply_format import NamedJsonBody, TaggedBody, ToolCallFormat

PROBE_WORDS = (*NAMES, *IDS, *KEYS[0], *KEYS[1], *VALUES[0], *VALUES[1])
ID = ".{1,60}?"


def explains(calls: ToolCallFormat, texts: CallTexts) -> bool:
    """Say whether a format writes the calls as the template does, white space aside."""
    if any(word in repr(calls) for word in PROBE_WORDS):
        return False
    if not isinstance(calls.body, NamedJsonBody | TaggedBody):
        return True
    if not (calls.section.start or calls.call.start or calls.body.name_start):
        return False  # any text would look like a call
    numbers = (0,) if texts.two is None else (0, 1)
    written = re.escape(_bare(calls.separator)).join(_write_call(calls, each) for each in numbers)
    pattern = _escaped(calls.section.start) + written + _escaped(calls.section.end)
    return re.match(pattern, _bare(texts.one if texts.two is None else texts.two)) is not None


def _write_call(calls: ToolCallFormat, number: int) -> str:
    """Return a pattern of one of the calls, without white space."""
    body = calls.body
    if isinstance(body, NamedJsonBody):
        arguments = json.dumps(dict(zip(KEYS[number], VALUES[number], strict=True)))
        written = _escaped(body.name_start + NAMES[number])
        written += _escaped(body.id_start) + ID if body.id_start else ""
        written += _escaped(body.name_end + arguments + body.arguments_end)
    else:
        assert isinstance(body, TaggedBody)
        pairs = zip(KEYS[number], VALUES[number], strict=True)
        arguments = "".join(
            body.key_start + key + body.key_end + value + body.value_end for key, value in pairs
        )
        written = _escaped(
            body.name_start + NAMES[number] + body.name_end + arguments + body.arguments_end
        )
    return _escaped(calls.call.start) + written + _escaped(calls.call.end)


def _escaped(text: str) -> str:
    return re.escape(_bare(text))


def _bare(text: str) -> str:
    return re.sub(r"\s+", "", text)

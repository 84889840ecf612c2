"""Learns what tool calls look like in replies, from histories that hold some.

Each reader looks for one body: by what is constant around names, keys and values that vary. Formats
that a history does not show fully have recognisers in `tool_formats`.
"""

from __future__ import annotations

import json
from typing import Any

from milepost.chat.formats.call_texts import CallTexts, read_surroundings
from milepost.chat.formats.probe_texts import IDS, KEYS, NAMES, OTHER_VALUES, VALUES
from milepost.chat.formats.reply_format import (
    Affix,
    JsonBody,
    NamedJsonBody,
    TaggedBody,
    ToolCallFormat,
)
from milepost.chat.formats.text_pieces import ends_with_tag, first_tag, shared_end, shared_start


def read_json_calls(texts: CallTexts) -> ToolCallFormat | None:
    """Read calls that are objects of JSON with the name inside."""
    found = _find_object(texts.one, NAMES[0])
    around = read_surroundings(texts, _json_place)
    if found is None or around is None:
        return None
    second = _find_object(texts.two or "", NAMES[1])
    keys = _read_keys(found[2], second[2] if second else None)
    if keys is None:
        return None
    section, call = around.section, Affix(around.opening, around.closing)
    # Of a single call it cannot be told what is around all calls; a list is.
    around_all = section if texts.two is not None else call
    in_list = around_all.start.endswith("[") and around_all.end.startswith("]")
    if in_list:
        section = Affix(around_all.start[:-1].rstrip(), around_all.end[1:].lstrip())
        call = Affix() if texts.two is None else call
    return ToolCallFormat(
        JsonBody(*keys, in_list=in_list, arguments_are_text=_has_text_arguments(found[2])),
        section,
        call,
        "" if in_list else around.separator,
        takes_several=texts.two is not None,
    )


def read_named_calls(texts: CallTexts) -> ToolCallFormat | None:
    """Read calls whose name stands before the JSON of their arguments."""
    around = read_surroundings(texts, _named_place)
    gap = _gap_to_arguments(texts.one, 0)
    if around is None or gap is None:
        return None
    id_start, name_end = _split_gap(gap, _gap_to_arguments(texts.two or "", 1))
    start, name_start = _split_opening(around.opening)
    end = ends_with_tag(around.closing) if start else ""
    arguments_end = around.closing.removesuffix(end).rstrip()
    return ToolCallFormat(
        NamedJsonBody(name_start, name_end, id_start, arguments_end),
        around.section,
        Affix(start, end),
        around.separator,
        takes_several=texts.two is not None,
    )


def read_tagged_calls(texts: CallTexts) -> ToolCallFormat | None:
    """Read calls whose arguments stand in tags."""
    around = read_surroundings(texts, _tagged_place)
    between_keys = _tagged_gaps(texts.one)
    place = _tagged_place(texts.one, 0)
    if around is None or between_keys is None or place is None:
        return None
    name_to_key, key_end, value_to_key = between_keys
    key_start = shared_end(name_to_key, value_to_key)
    key_start = key_start.lstrip()
    value_end = shared_start(value_to_key.removesuffix(key_start), texts.one[place[1] :])
    start, name_start = _split_opening(around.opening)
    closing = around.closing.removeprefix(value_end.strip()).strip()
    end = ends_with_tag(closing) if start else ""
    return ToolCallFormat(
        TaggedBody(
            name_start=name_start,
            name_end=name_to_key.removesuffix(key_start),
            key_start=key_start,
            key_end=key_end,
            json_key_end=_read_json_key_end(texts.other, key_end),
            value_end=value_end,
            arguments_end=closing.removesuffix(end).strip(),
        ),
        around.section,
        Affix(start, end),
        around.separator,
        takes_several=texts.two is not None,
    )


def _read_json_key_end(text: str, key_end: str) -> str:
    """Return what stands between key and value where the value is a number, if that differs."""
    found = text.partition(KEYS[0][0])[2].partition(str(OTHER_VALUES[0]))
    return found[0] if found[1] and found[0] != key_end else ""


def _split_opening(opening: str) -> tuple[str, str]:
    """Return what stands before a call, and what of that belongs to its name."""
    tag = first_tag(opening)
    if tag:
        return tag, opening[len(tag) :].lstrip()
    return ("", opening) if "<" in opening else (opening, "")


def _find_object(text: str, marker: str, start: int = 0) -> tuple[int, int, Any] | None:
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


def _json_place(text: str, number: int) -> tuple[int, int] | None:
    found = _find_object(text, NAMES[number])
    return found[:2] if found else None


def _read_keys(one: Any, other: Any) -> tuple[str, str, str, str] | None:
    """Return the keys of name, arguments, id and wrapper; None if there are none."""
    wrapper = ""
    if NAMES[0] not in one.values():
        wrapper = next((key for key, value in one.items() if isinstance(value, dict)), "")
    inner = one[wrapper] if wrapper else one
    name = next((key for key, value in inner.items() if value == NAMES[0]), "")
    arguments = next((key for key, value in inner.items() if KEYS[0][0] in json.dumps(value)), "")
    if not name or not arguments:
        return None
    ids = (
        key
        for key, value in one.items()
        if key not in (wrapper, name, arguments)
        and (value == IDS[0] or (other is not None and other.get(key) != value))
    )
    return name, arguments, next(ids, ""), wrapper


def _has_text_arguments(call: Any) -> bool:
    return KEYS[0][0] in json.dumps(call) and f'"{KEYS[0][0]}"' not in json.dumps(call)


def _named_place(text: str, number: int) -> tuple[int, int] | None:
    pos = text.find(NAMES[number])
    found = _find_object(text, KEYS[number][0], pos) if pos >= 0 else None
    return (pos, found[1]) if found else None


def _gap_to_arguments(text: str, number: int) -> str | None:
    pos = text.find(NAMES[number])
    found = _find_object(text, KEYS[number][0], pos) if pos >= 0 else None
    return text[pos + len(NAMES[number]) : found[0]] if found else None


def _split_gap(gap: str, other: str | None) -> tuple[str, str]:
    """Return what stands before an id and behind it; all is behind it if there is none."""
    if IDS[0] in gap:
        before, _, after = gap.partition(IDS[0])
        return before, after
    if other is None or other == gap:
        return "", gap
    return shared_start(gap, other), shared_end(gap, other)


def _tagged_place(text: str, number: int) -> tuple[int, int] | None:
    start, pos = text.find(NAMES[number]), 0
    if start < 0:
        return None
    pos = start
    for key, value in zip(KEYS[number], VALUES[number], strict=True):
        for wanted in (key, value):
            pos = text.find(wanted, pos)
            if pos < 0:
                return None
            pos += len(wanted)
    return start, pos


def _tagged_gaps(text: str) -> tuple[str, str, str] | None:
    """Return what stands between name and key, key and value, value and the next key."""
    (key, next_key), (value, _) = KEYS[0], VALUES[0]
    if _tagged_place(text, 0) is None:
        return None
    after_name = text[text.index(NAMES[0]) + len(NAMES[0]) :]
    name_to_key, _, after_key = after_name.partition(key)
    key_to_value, _, after_value = after_key.partition(value)
    return name_to_key, key_to_value, after_value.partition(next_key)[0]

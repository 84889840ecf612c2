"""Calls that are JSON objects with the name and the arguments, alone or in a list.

    {"name": "read", "arguments": {"path": "a.py"}}

A list is read wherever one begins, and the keys `arguments` and `parameters` both do: models mix
them up. Arguments that stand before the name, or before an id that the format promises, are held
back until it comes. Where calls have no marker, a key that no call has ends the attempt at once: an
answer in JSON must not be held back to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.call_texts import find_object, read_surroundings
from milepost.chat.formats.grammar_writer import (
    GrammarWriter,
    choice,
    list_in_order,
    quote_regex,
    seq,
)
from milepost.chat.formats.json_text import copy_arguments, copy_json, quote, read_string
from milepost.chat.formats.json_values import UNIT_ESCAPE, string_regex, write_arguments
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.probe_texts import IDS, KEYS, NAMES, CallTexts, Probe, user
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, TextSource

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id")
CALL_ID = "[a-zA-Z0-9_\\x2d]{1,40}"
# A unit that may be escaped in the outer string: no control character, quote or backslash there.
OUTER_UNIT = (
    r"\\u(00[89a-fA-F][0-9a-fA-F]|0[1-9a-fA-F][0-9a-fA-F]{2}|[1-9a-cefA-CEF][0-9a-fA-F]{3}"
    r"|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
# One character of a string in a JSON string, where a quote is \\\" and a line break \\n.
INNER_CHARACTER = (
    r'([^"\\\x00-\x1F\x7F]|\\\\[nrtbf\x2f]|\\\\\\"|\\\\\\\\|\\\x2f|'
    + OUTER_UNIT
    + "|"
    + UNIT_ESCAPE.replace(r"\\u", r"\\\\u")
    + ")"
)
INNER_QUOTE = r'\\"'
# <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>
EXAMPLE = re.compile(
    r"(?P<start><(?P<tag>[\w:.|-]+)>)\s*(?P<list>\[?)\s*"
    r"\{+\s*\"(?P<name>name|tool_name|function)\"\s*:\s*[^\n{}]{1,80}?,\s*"
    r"\"(?P<arguments>arguments|parameters|args)\"\s*:[^\n]{1,200}?\}+\s*"
    r"(?(list)(?:[^\n]{0,200}?\])?)\s*"
    r"(?P<end></(?P=tag)>)"
)
# <|tool_call|> followed by a JSON list of tools used
JSON_LIST = re.compile(r"(?P<start><\|[\w:.-]+\|>)['\"`]? followed by a JSON (?:list|array)")


@dataclass(frozen=True, slots=True)
class JsonBody(CallBody):
    """A call is one JSON object: `{"name": …, "arguments": {…}}`.

    Qwen2.5, Qwen3, Hermes, Granite, SmolLM3; Llama 3 without affixes; in a list: Mistral Nemo,
    Nemotron, LFM2.
    """

    name: ClassVar = "json_calls"
    stands_in_lines: ClassVar = True  # as all templates with such tags write it

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""  # empty: calls have no ids
    wrapper_key: str = ""  # `{"function": {"name": …}}`; empty: none
    in_list: bool = False  # the section is one JSON list of all calls
    arguments_are_text: bool = False  # JSON in a JSON string

    @property
    def markers(self) -> tuple[str, ...]:
        """None: JSON needs none."""
        return ()

    @property
    def is_list(self) -> bool:
        """Whether the section is a list."""
        return self.in_list

    @property
    def bare_start(self) -> str:
        """A bracket."""
        return "[" if self.in_list else "{"

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call, or a list of calls."""
        source, writer = reading.source, reading.writer
        if (yield from source.peek_after_space()) != "[":
            yield from _read_call(source, self, writer)
            return
        yield from source.take(1)
        yield from read_json_list(source, self, writer)

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool: the name first, then its arguments."""
        name = _member(self.name_key, writer.plain(quote(tool.name)), writer)
        arguments = _member(self.arguments_key, _write_arguments(self, tool, writer), writer)
        members = [(name, True), (arguments, tool.is_strict)]
        if self.wrapper_key:
            inner = _member(self.wrapper_key, _write_object(members, writer), writer)
            members = [(_member("type", writer.plain('"function"'), writer), False), (inner, True)]
        if not self.id_key:
            return _write_object(members, writer)
        call_id = (_member(self.id_key, writer.pattern(f'"{CALL_ID}"'), writer), False)
        return choice(
            _write_object([call_id, *members], writer), _write_object([*members, call_id], writer)
        )

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call as an object."""
        arguments = quote(call.arguments_text) if self.arguments_are_text else call.arguments_text
        written = f'{{"{self.name_key}": {quote(call.name)}, "{self.arguments_key}": {arguments}'
        if self.wrapper_key:
            written = f'{{"type": "function", "{self.wrapper_key}": {written}}}'
        if self.id_key:
            written += f', "{self.id_key}": {quote(call.call_id)}'
        return written + "}"

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if the name stands inside of an object."""
        found = find_object(texts.one, NAMES[0])
        around = read_surroundings(texts, _find_call)
        if found is None or around is None:
            return None
        second = find_object(texts.two or "", NAMES[1])
        keys = _read_keys(found[2], second[2] if second else None)
        if keys is None:
            return None
        section, call = around.section, around.call
        # Of a single call it cannot be told what is around all calls; a list is.
        around_all = section if texts.two is not None else call
        in_list = around_all.start.endswith("[") and around_all.end.startswith("]")
        if in_list:
            section = Affix(around_all.start[:-1].rstrip(), around_all.end[1:].lstrip())
            call = Affix() if texts.two is None else call
        return ToolCallFormat(
            cls(*keys, in_list=in_list, arguments_are_text=_has_text_arguments(found[2])),
            section,
            call,
            "" if in_list else around.separator,
            takes_several=texts.two is not None,
        )

    @classmethod
    def recognise_explained(cls, probe: Probe) -> ToolCallFormat | None:
        """Return the format that a prompt with tools explains by an example in tags.

        Some templates explain calls to the model and never write one: histories lose them, or hold
        them as contents.
        """
        prompt = probe.prompt(user(), tools=True) or ""
        listed = JSON_LIST.search(prompt)
        if listed is not None:
            return ToolCallFormat(cls(in_list=True), section=Affix(listed["start"]))
        match = EXAMPLE.search(prompt)
        if match is None or any(name in match[0] for name in NAMES):
            return None
        affix = Affix(match["start"], match["end"])
        body = cls(match["name"], match["arguments"], in_list=bool(match["list"]))
        if body.in_list:
            return ToolCallFormat(body, section=affix)
        return ToolCallFormat(body, call=affix)


# --- reading -----------------------------------------------------------------------------


def read_json_list(source: TextSource, body: JsonBody, writer: ReplyWriter) -> Steps[None]:
    """Read a list of calls whose bracket has been read."""
    if (yield from source.match_after_space(("]",))):
        raise Malformed("the list is empty")
    while True:
        yield from _read_call(source, body, writer)
        if (yield from source.match_after_space(("]",))):
            return
        yield from source.expect_after_space(",")


class _Draft:
    """What is known of a call; begins it as soon as that is enough."""

    def __init__(self, body: JsonBody, writer: ReplyWriter) -> None:
        self._body = body
        self._writer = writer
        self._held: list[str] = []
        self._has_begun = False
        self.name = ""
        self.call_id = ""
        self.has_arguments = False  # all of them

    def write(self, text: str) -> None:
        """Write a part of the arguments."""
        if self.name and (self.call_id or not self._body.id_key):
            self._begin()
            self._writer.arguments(text)
        else:
            self._held.append(text)

    def check_other_key(self, key: str) -> None:
        """Raise Malformed where a key shows that this is no call."""
        if self._writer.needs_known_name and key not in OTHER_KEYS:
            raise Malformed("there is a key that no call has")

    def end(self) -> None:
        """End the call."""
        self._begin()
        if not self.has_arguments:
            self._writer.arguments("{}")
        self._writer.end_call()

    def _begin(self) -> None:
        if not self._has_begun:
            self._writer.begin_call(self.name, self.call_id)
            self._has_begun = True
            self._writer.arguments("".join(self._held))
            self._held.clear()


def _read_call(source: TextSource, body: JsonBody, writer: ReplyWriter) -> Steps[None]:
    draft = _Draft(body, writer)
    try:
        yield from _read_members(source, body, draft)
    except Malformed as problem:
        if not (draft.name and draft.has_arguments):
            raise
        writer.warn(f"a tool call is complete, but after its arguments {problem}")
    draft.end()


def _read_members(source: TextSource, body: JsonBody, draft: _Draft) -> Steps[None]:
    yield from source.expect_after_space("{")
    if (yield from source.match_after_space(("}",))):
        return
    while True:
        key = yield from read_string(source)
        yield from source.expect_after_space(":")
        yield from source.skip_space()
        yield from _read_member(source, body, draft, key)
        if (yield from source.match_after_space(("}",))):
            return
        yield from source.expect_after_space(",")


def _read_member(source: TextSource, body: JsonBody, draft: _Draft, key: str) -> Steps[None]:
    char = yield from source.peek()
    if body.wrapper_key and key == body.wrapper_key and char == "{":
        yield from _read_members(source, replace(body, wrapper_key=""), draft)
    elif key == body.name_key and char == '"':
        draft.name = yield from read_string(source)
    elif key == body.id_key and char == '"':
        draft.call_id = yield from read_string(source)
    elif (key == body.arguments_key or key in ARGUMENT_KEYS) and not draft.has_arguments:
        yield from copy_arguments(source, draft.write)
        draft.has_arguments = True
    else:
        draft.check_other_key(key)
        yield from copy_json(source, _skip)


def _skip(text: str) -> None:
    """Write nothing: the member says nothing about the call."""


# --- grammar -----------------------------------------------------------------------------


def _write_arguments(body: JsonBody, tool: CallableTool, writer: GrammarWriter) -> str:
    if not body.arguments_are_text:
        return write_arguments(tool, writer)
    values = LiteralWriter(JSON_IN_TEXT, tool.schema, writer, keeps_order=tool.keeps_order)
    inner = values.object(tool.schema if tool.is_strict else {})
    return seq(writer.plain('"'), inner, writer.plain('"'))


def _write_object(members: list[tuple[str, bool]], writer: GrammarWriter) -> str:
    listed = list_in_order(members, _comma(writer), writer)
    return seq(writer.plain("{"), writer.space, listed, writer.space, writer.plain("}"))


def _member(key: str, value: str, writer: GrammarWriter) -> str:
    return seq(writer.plain(quote(key)), writer.space, writer.plain(":"), writer.space, value)


def _comma(writer: GrammarWriter) -> str:
    return seq(writer.space, writer.plain(","), writer.space)


def _write_any_inner_string(writer: GrammarWriter) -> str:
    return writer.pattern(f"{INNER_QUOTE}{INNER_CHARACTER}*{INNER_QUOTE}")


def _write_inner_strings(texts: Sequence[str], writer: GrammarWriter) -> str:
    return writer.words(
        (string_regex(text, _inner_regex) for text in texts), INNER_QUOTE, INNER_QUOTE
    )


def _inner_regex(form: str) -> str:
    return quote_regex(quote(form)[1:-1])


def _write_any_inner_key(names: Sequence[str], writer: GrammarWriter) -> str:
    key = _write_any_inner_string(writer)
    if names:
        key = writer.other_than(key, _write_inner_strings(names, writer))
    return seq(key, JSON_IN_TEXT.colon(writer))


# JSON in a JSON string; line breaks between its parts would need escapes, which none needs.
JSON_IN_TEXT = LiteralDialect(
    name="text",
    true="true",
    false="false",
    null="null",
    space=" ?",
    write_any_string=_write_any_inner_string,
    write_strings=_write_inner_strings,
    is_open=True,
    write_any_key=_write_any_inner_key,
    write_key=lambda name, writer: _write_inner_strings([name], writer),
)


# --- probe -------------------------------------------------------------------------------


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    found = find_object(text, NAMES[number])
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

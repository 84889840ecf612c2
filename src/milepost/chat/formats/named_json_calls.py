"""Calls whose name stands before the JSON of the arguments.

functions.read:0<|tool_call_argument_begin|>{"path": "a.py"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.call_texts import (
    bare_pattern,
    find_object,
    read_surroundings,
    split_call_start,
)
from milepost.chat.formats.grammar_writer import GrammarWriter, seq
from milepost.chat.formats.json_text import copy_arguments
from milepost.chat.formats.json_values import write_arguments
from milepost.chat.formats.probe_texts import IDS, KEYS, NAMES, VALUES, CallTexts
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS
from milepost.chat.formats.text_pieces import ends_with_tag, shared_end, shared_start
from milepost.chat.formats.text_source import Malformed, Steps, Stops

MAX_HEAD_CHARS = 2 * MAX_NAME_CHARS  # a name and an id
CALL_ID = "[a-zA-Z0-9_\\x2d]{1,40}"
NUMBER_ID = "[0-9]{1,3}"  # Kimi counts the calls of a conversation
PROBED_ID = ".{1,60}?"


@dataclass(frozen=True, slots=True)
class NamedJsonBody(CallBody):
    """The name stands before the JSON of the arguments.

    DeepSeek: `NAME<｜tool▁sep｜>{…}`; Kimi: `functions.NAME:0<|tool_call_argument_begin|>{…}`;
    Mistral Small 3.2: `NAME[CALL_ID]ID[ARGS]{…}`; R1 puts the JSON into a fenced block.
    """

    name: ClassVar = "named_json_calls"

    name_start: str = ""  # "functions."
    name_end: str = ""  # what separates the name, or name and id, from the arguments
    id_start: str = ""  # "[CALL_ID]", ":"; empty: calls have no ids
    arguments_end: str = ""  # after the JSON, before `call.end`

    @property
    def markers(self) -> tuple[str, ...]:
        """What stands around the name, the id and the arguments."""
        return self.name_start, self.name_end, self.id_start, self.arguments_end

    @property
    def head(self) -> str:
        """What stands before the name."""
        return self.name_start.strip()

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call."""
        source, writer = reading.source, reading.writer
        yield from source.expect_after_space(self.head)
        name_end = self.name_end.strip()
        stop = name_end or "{"
        text, _ = yield from source.read_until(Stops([stop]), MAX_HEAD_CHARS)
        if not name_end:
            source.back(len(stop))
        name, call_id = self._split_name(text.strip())
        if (yield from source.peek_after_space()) not in '{"n':
            raise Malformed("the arguments are missing")
        writer.begin_call(name, call_id)
        yield from copy_arguments(source, writer.arguments)
        writer.end_call()
        yield from source.match_after_space((self.arguments_end.strip(),))

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool."""
        call_id = ""
        if self.id_start:
            numbered = self.id_start == ":"
            pattern = writer.pattern(NUMBER_ID if numbered else CALL_ID)
            call_id = seq(writer.exact(self.id_start), pattern)
            call_id = call_id if numbered else writer.optional(call_id)
        name_end = self.name_end.rstrip()
        return seq(
            writer.exact(self.name_start),
            writer.plain(tool.name),
            call_id,
            seq(writer.exact(name_end), writer.space) if name_end else writer.exact(self.name_end),
            write_arguments(tool, writer),
            writer.end_marker(self.arguments_end),
        )

    def can_write_name(self, name: str) -> bool:
        """Names end at an id, or before the arguments."""
        ends = (self.name_end.strip() or "{", self.id_start.strip())
        return not any(end and end in name for end in ends) and name == name.strip()

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call with its arguments as they arrived."""
        call_id = self.id_start + call.call_id if self.id_start else ""
        # A line break at the end of arguments is not kept in the format; fenced blocks have one.
        line = "\n" if self.arguments_end and self.name_end.endswith("\n") else ""
        before = self.name_start + call.name + call_id + self.name_end
        return before + call.arguments_text + line + self.arguments_end

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if an object of the arguments follows the name."""
        around = read_surroundings(texts, _find_call)
        gap = _gap_to_arguments(texts.one, 0)
        if around is None or gap is None:
            return None
        id_start, name_end = _split_gap(gap, _gap_to_arguments(texts.two or "", 1))
        start, name_start = split_call_start(around.call.start)
        end = ends_with_tag(around.call.end) if start else ""
        arguments_end = around.call.end.removesuffix(end).rstrip()
        return ToolCallFormat(
            cls(name_start, name_end, id_start, arguments_end),
            around.section,
            Affix(start, end),
            around.separator,
            takes_several=texts.two is not None,
        )

    def probe_pattern(self, number: int) -> str:
        """Return a pattern of a probed call, with any id."""
        arguments = json.dumps(dict(zip(KEYS[number], VALUES[number], strict=True)))
        call_id = bare_pattern(self.id_start) + PROBED_ID if self.id_start else ""
        rest = bare_pattern(self.name_end + arguments + self.arguments_end)
        return bare_pattern(self.name_start + NAMES[number]) + call_id + rest

    def _split_name(self, text: str) -> tuple[str, str]:
        """Return name and id; the id is all of the text where it begins with the name.

        Kimi's `functions.read:0` is the id of a call to `read`.
        """
        id_start = self.id_start.strip()
        if not id_start or id_start not in text:
            return text, ""
        name, _, call_id = text.rpartition(id_start)
        if self.head:
            call_id = f"{self.head}{name}{id_start}{call_id}"
        return name.strip(), call_id.strip()


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    pos = text.find(NAMES[number])
    found = find_object(text, KEYS[number][0], pos) if pos >= 0 else None
    return (pos, found[1]) if found else None


def _gap_to_arguments(text: str, number: int) -> str | None:
    pos = text.find(NAMES[number])
    found = find_object(text, KEYS[number][0], pos) if pos >= 0 else None
    return text[pos + len(NAMES[number]) : found[0]] if found else None


def _split_gap(gap: str, other: str | None) -> tuple[str, str]:
    """Return what stands before an id and after it; all is after it if there is none."""
    if IDS[0] in gap:
        before, _, after = gap.partition(IDS[0])
        return before, after
    if other is None or other == gap:
        return "", gap
    return shared_start(gap, other), shared_end(gap, other)

"""Calls as Python writes them: `[read(path="a.py", lines=[1, 20]), look()]`.

LFM2's templates never show one: there the list of tools stands in markers that are recognised, or
the vocabulary has tokens of its own for calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from milepost.chat.formats.call_schemas import CallableTool, properties_of, takes_any
from milepost.chat.formats.call_texts import read_surroundings
from milepost.chat.formats.grammar_writer import GrammarWriter, choice, list_in_order, seq
from milepost.chat.formats.json_calls import JsonBody, read_json_list
from milepost.chat.formats.json_text import ArgumentWriter, quote
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.probe_texts import KEYS, NAMES, VALUES, CallTexts, Probe, user
from milepost.chat.formats.python_literals import copy_literal
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, TextSource

TOOL_LIST = "<|tool_list_start|>"
LISTED_CALLS = Affix("<|tool_call_start|>", "<|tool_call_end|>")
NAME = re.compile(r"[\w.\-/]+")
NAME_TERMINAL = "[A-Za-z_][A-Za-z0-9_]{0,63}"
# Escapes that mean the same in JSON and in Python.
SHARED_ESCAPES = 'nrtbf\\"'
SINGLE_QUOTED = r"'([^'\\\x00-\x1F\x7F]|\\[nrtbf'\\])*'"
PYTHON_WORDS = {True: "True", False: "False", None: "None"}


@dataclass(frozen=True, slots=True)
class PythonicBody(CallBody):
    """Calls as Python writes them: `[name(key="value", other=1)]` (LFM2, Llama 4)."""

    name: ClassVar = "pythonic"

    @property
    def markers(self) -> tuple[str, ...]:
        """None: Python needs none."""
        return ()

    @property
    def is_list(self) -> bool:
        """Always."""
        return True

    @property
    def bare_start(self) -> str:
        """A bracket."""
        return "["

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call or a list of calls; models of these families write JSON sometimes."""
        source = reading.source
        is_list = yield from source.match_after_space(("[",))
        if (yield from source.peek_after_space()) == "{":
            if is_list:
                yield from read_json_list(source, JsonBody(), reading.writer)
            else:
                yield from JsonBody().read_calls(reading)
            return
        if is_list and (yield from source.match_after_space(("]",))):
            return
        while True:
            yield from _read_call(source, reading.writer)
            if not is_list or (yield from source.match_after_space(("]",))):
                return
            yield from source.expect_after_space(",")

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool."""
        values = LiteralWriter(PYTHON, tool.schema, writer)
        named = [
            (seq(writer.plain(f"{one.name}="), values.value(one.schema)), one.is_required)
            for one in (properties_of(tool.schema) if tool.is_strict else ())
        ]
        if named:
            arguments = list_in_order(named, values.comma, writer)
        elif takes_any(tool.schema):
            other = seq(writer.pattern(NAME_TERMINAL), writer.plain("="), values.anything())
            arguments = writer.optional(seq(other, f"({seq(values.comma, other)})*"))
        else:
            arguments = ""
        return seq(writer.plain(f"{tool.name}("), writer.space, arguments, writer.space, '")"')

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call with keyword arguments."""
        pairs = ", ".join(f"{key}={_as_python(value)}" for key, value in call.arguments.items())
        return f"{call.name}({pairs})"

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if keys stand as arguments of Python do after the name."""
        around = read_surroundings(texts, _find_call)
        if around is None:
            return None
        start, end = around.call.start, around.call.end
        if texts.two is not None:
            start, end = around.section.start + start, end + around.section.end
        return ToolCallFormat(
            cls(),
            Affix(start.removesuffix("[").strip(), end.removeprefix("]").strip()),
            takes_several=texts.two is not None,
        )

    @classmethod
    def recognise_explained(cls, probe: Probe) -> ToolCallFormat | None:
        """Return LFM2's format where a prompt or the vocabulary has its markers."""
        prompt = probe.prompt(user(), tools=True) or ""
        has_tokens = probe.controls >= {LISTED_CALLS.start, LISTED_CALLS.end}
        if TOOL_LIST in prompt or (NAMES[0] in prompt and has_tokens):
            return ToolCallFormat(cls(), LISTED_CALLS)
        return None


def _read_call(source: TextSource, writer: ReplyWriter) -> Steps[None]:
    yield from source.skip_space()
    name = yield from source.read_while(NAME)
    yield from source.expect_after_space("(")
    is_closed = yield from source.match_after_space((")",))
    if not is_closed:
        key = yield from _read_key(source)
    writer.begin_call(name)
    arguments = ArgumentWriter(writer.arguments)
    while not is_closed:
        arguments.key(key)
        yield from copy_literal(source, arguments.write)
        is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            yield from source.expect_after_space(",")
            is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            key = yield from _read_key(source)
    arguments.end()
    writer.end_call()


def _read_key(source: TextSource) -> Steps[str]:
    yield from source.skip_space()
    key = yield from source.read_while(NAME)
    if not key:
        raise Malformed("the name of an argument is missing")
    yield from source.expect_after_space("=")
    return key


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(f"{NAMES[number]}({KEYS[number][0]}=")
    last_value = text.find(VALUES[number][1], start)
    end = text.find(")", last_value)
    return (start, end + 1) if min(start, last_value, end) >= 0 else None


def _as_python(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return PYTHON_WORDS[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_as_python, value))}]"
    if isinstance(value, dict):
        pairs = (f"{quote(key)}: {_as_python(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return quote(value)


def _write_any_string(writer: GrammarWriter) -> str:
    doubled = writer.json({"type": "string"}, json_allowed_escapes=SHARED_ESCAPES)
    return choice(doubled, writer.pattern(SINGLE_QUOTED))


def _write_string(text: str, writer: GrammarWriter) -> str:
    return writer.plain(quote(text))


PYTHON = LiteralDialect(
    true="True",
    false="False",
    null="None",
    write_any_string=_write_any_string,
    write_string=_write_string,
    write_any_key=_write_any_string,
    write_key=_write_string,
)

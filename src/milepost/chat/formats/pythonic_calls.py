"""Calls as Python writes them: `[read(path="a.py", lines=[1, 20]), look()]`.

LFM2's templates never show one: there the list of tools stands in markers that are recognised, or
the vocabulary has tokens of its own for calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from milepost.chat.formats.call_schemas import (
    CallableTool,
    orders_of,
    properties_of,
    takes_others,
)
from milepost.chat.formats.call_texts import read_surroundings
from milepost.chat.formats.grammar_writer import (
    SPACE,
    GrammarWriter,
    Schema,
    choice,
    list_in_order,
    quote_regex,
    seq,
)
from milepost.chat.formats.json_calls import JsonBody, read_json_list
from milepost.chat.formats.json_text import ArgumentWriter, quote
from milepost.chat.formats.json_values import UNIT_ESCAPE
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.probe_texts import KEYS, NAMES, VALUES, CallTexts, Probe, user
from milepost.chat.formats.python_literals import copy_key, copy_literal
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.schema_resolver import Schemas
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource

TOOL_LIST = "<|tool_list_start|>"
LISTED_CALLS = Affix("<|tool_call_start|>", "<|tool_call_end|>")
NAME = re.compile(r"[\w.\-/]+")
MAX_KEY_CHARS = 1024  # arbitrary
# What ends the name of an argument, or cannot stand in one.
KEY_STOPS = Stops(("=", "(", ")", ",", '"', "'", "\n"))
BARE_KEY = re.compile(r"(?!\*)[^\s=(),\"']([^=(),\"'\n]*[^\s=(),\"'])?")
KEY_TERMINAL = r"[^\s=(),\x22'\x2a\x2f\[\]{}]([^=(),\x22'\n]{0,126}[^\s=(),\x22'])?"
# Escapes that mean the same in JSON and in Python.
STRING_ESCAPES = r"\\[nrtbf'\x22\\]|" + UNIT_ESCAPE
DOUBLE_QUOTED = rf"\x22([^\x22\\\x00-\x1F\x7F]|{STRING_ESCAPES})*\x22"
SINGLE_QUOTED = rf"'([^'\\\x00-\x1F\x7F]|{STRING_ESCAPES})*'"
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
            raise Malformed("the list is empty")
        while True:
            yield from _read_call(source, reading.writer)
            if not is_list or (yield from source.match_after_space(("]",))):
                return
            yield from source.expect_after_space(",")

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool."""
        values = LiteralWriter(PYTHON, tool.schema, writer, keeps_order=tool.keeps_order)
        schemas = Schemas(tool.schema).alternatives(tool.schema)
        ways = dict.fromkeys(_write_arguments(one, tool, values, writer) for one in schemas)
        arguments = choice(*ways) if "" not in ways else writer.optional(choice(*ways))
        return seq(writer.plain(f"{tool.name}("), writer.space, arguments, writer.space, '")"')

    def can_write_name(self, name: str) -> bool:
        """Names have no white space: text in brackets would be held back as one."""
        return NAME.fullmatch(name) is not None

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call with keyword arguments."""
        pairs = (_write_key(key, _as_python(value)) for key, value in call.arguments.items())
        return f"{call.name}({', '.join(pairs)})"

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
        if key:
            arguments.key(key)
            yield from copy_literal(source, arguments.write)
        else:
            yield from _copy_unpacked(source, arguments)
        is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            yield from source.expect_after_space(",")
            is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            key = yield from _read_key(source)
    arguments.end()
    writer.end_call()


def _read_key(source: TextSource) -> Steps[str]:
    """Return the name of an argument, "" where arguments are in a dictionary, with its brace."""
    if (yield from source.match_after_space(("**",))):
        yield from source.expect_after_space("{")
        return ""
    yield from source.skip_space()
    key, stop = yield from source.read_until(KEY_STOPS, MAX_KEY_CHARS)
    if stop != "=" or not key.strip():
        raise Malformed("the name of an argument is missing")
    return key.strip()


def _copy_unpacked(source: TextSource, arguments: ArgumentWriter) -> Steps[None]:
    r"""Copy arguments out of a dictionary, whose brace has been read: `**{"a=b": 1}`."""
    while not (yield from source.match_after_space(("}",))):
        pieces: list[str] = []
        yield from copy_key(source, pieces.append)
        arguments.quoted_key("".join(pieces))
        yield from copy_literal(source, arguments.write)
        if (yield from source.peek_after_space()) != "}":
            yield from source.expect_after_space(",")


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(f"{NAMES[number]}({KEYS[number][0]}=")
    last_value = text.find(VALUES[number][1], start)
    end = text.find(")", last_value)
    return (start, end + 1) if min(start, last_value, end) >= 0 else None


def _write_key(key: str, value: str) -> str:
    return f"{key}={value}" if BARE_KEY.fullmatch(key) else f"**{{{quote(key)}: {value}}}"


def _as_python(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return PYTHON_WORDS[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_as_python, value))}]"
    if isinstance(value, dict):
        pairs = (f"{quote(key)}: {_as_python(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return quote(value)


# --- grammar -----------------------------------------------------------------------------


def _write_arguments(
    schema: Schema, tool: CallableTool, values: LiteralWriter, writer: GrammarWriter
) -> str:
    """Return an expression for the arguments of one alternative, "" where there are none."""
    named = properties_of(schema) if tool.is_strict else []
    others = not tool.is_strict or takes_others(schema)
    members = {one.name: _write_pair(writer, one.name, values.value(one.schema)) for one in named}
    rest = _write_others(values, writer) if others else ""
    if not named:
        return writer.optional(rest)
    return choice(
        *(
            list_in_order(
                [
                    *((members[one.name], one.is_required) for one in order),
                    *([(rest, False)] if rest else ()),
                ],
                values.comma,
                writer,
            )
            for order in orders_of(named, keeps_order=tool.keeps_order)
        )
    )


def _write_pair(writer: GrammarWriter, name: str, value: str) -> str:
    if BARE_KEY.fullmatch(name):
        return seq(writer.plain(f"{name}="), value)
    start = seq(writer.plain("**{"), _write_strings([name], writer), writer.plain(":"))
    return seq(start, writer.space, value, writer.plain("}"))


def _write_others(values: LiteralWriter, writer: GrammarWriter) -> str:
    """Return an expression for arguments of any names."""
    value = values.anything()
    start = seq(writer.plain("**{"), _write_any_string(writer), writer.plain(":"), writer.space)
    other = choice(
        seq(writer.pattern(f"{KEY_TERMINAL}{SPACE}={SPACE}"), value),
        seq(start, value, writer.plain("}")),
    )
    return seq(other, f"({seq(values.comma, other)})*")


def _write_any_string(writer: GrammarWriter) -> str:
    return writer.pattern(f"({DOUBLE_QUOTED}|{SINGLE_QUOTED})")


def _write_strings(texts: Sequence[str], writer: GrammarWriter) -> str:
    single = (quote(text)[1:-1].replace('\\"', '"').replace("'", "\\'") for text in texts)
    quoted = [*map(quote, texts), *(f"'{text}'" for text in single)]
    return writer.words(map(quote_regex, quoted))


def _write_any_key(names: Sequence[str], writer: GrammarWriter) -> str:
    return seq(_write_any_string(writer), PYTHON.colon(writer))


PYTHON = LiteralDialect(
    name="python",
    true="True",
    false="False",
    null="None",
    space=SPACE,
    write_any_string=_write_any_string,
    write_strings=_write_strings,
    write_any_key=_write_any_key,
    write_key=lambda name, writer: _write_strings([name], writer),
)

"""Calls as Gemma 4 writes them, their arguments in braces with quotes of their own.

call:read{path:<|"|>a.py<|"|>,lines:[1,20]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.call_texts import read_surroundings
from milepost.chat.formats.grammar_writer import (
    SPACE,
    GrammarWriter,
    choice,
    quote_regex,
    seq,
)
from milepost.chat.formats.json_text import ArgumentWriter, escape, quote
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.probe_texts import KEYS, NAMES, VALUES, CallTexts
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS
from milepost.chat.formats.text_pieces import first_tag
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource, Write

MAX_DEPTH = 32  # of nested values; arbitrary
MAX_KEY_CHARS = 1024  # arbitrary
BARE = re.compile(r"[^,{}\[\]]+")  # a number, a word
# A key without quotes ends at a colon. One that begins otherwise is safe from being a quote.
BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'<>|]([^:,{}\"<>|\n]*[^\s:,{}\"<>|])?")
KEY_TERMINAL = r"[^\s:,{}\[\]\x22'<>|\x2f]([^:,{}\x22<>|\n]{0,126}[^\s:,{}\x22<>|])?"


@dataclass(frozen=True, slots=True)
class BracedBody(CallBody):
    """`call:NAME{key:<|"|>text<|"|>,other:1}`, as Gemma 4 writes them."""

    name: ClassVar = "braced_calls"

    name_start: str = "call:"
    quote: str = '<|"|>'

    @property
    def markers(self) -> tuple[str, ...]:
        """The quote."""
        return (self.quote,)

    @property
    def head(self) -> str:
        """What stands before the name."""
        return self.name_start.strip()

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call."""
        source, writer = reading.source, reading.writer
        yield from source.expect_after_space(self.name_start)
        name, _ = yield from source.read_until(Stops(["{"]), MAX_NAME_CHARS)
        is_closed = yield from source.match_after_space(("}",))
        if not is_closed:
            key = yield from _read_key(source, self)
        writer.begin_call(name.strip())
        arguments = ArgumentWriter(writer.arguments)
        while not is_closed:
            arguments.key(key)
            yield from _copy_value(source, self, arguments.write, MAX_DEPTH)
            is_closed = yield from source.match_after_space(("}",))
            if not is_closed:
                yield from source.expect_after_space(",")
                key = yield from _read_key(source, self)
        arguments.end()
        writer.end_call()

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool."""
        dialect = _make_dialect(self.quote)
        values = LiteralWriter(dialect, tool.schema, writer, keeps_order=tool.keeps_order)
        arguments = values.object(tool.schema if tool.is_strict else {})
        return seq(writer.exact(self.name_start), writer.plain(tool.name), arguments)

    def can_write_name(self, name: str) -> bool:
        """Names end at a brace."""
        return "{" not in name and name == name.strip()

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call without white space between its parts."""
        return self.name_start + call.name + self._write_value(call.arguments)

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if keys stand bare in braces after the name."""
        text_quote = _read_quote(texts.one)
        around = read_surroundings(texts, _find_call)
        if text_quote is None or around is None:
            return None
        tag = first_tag(around.call.start)
        name_start = around.call.start.removeprefix(tag).lstrip()
        return ToolCallFormat(
            cls(name_start, text_quote),
            call=Affix(tag, around.call.end),
            separator=around.separator,
            takes_several=texts.two is not None,
        )

    def _write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return self.quote + value + self.quote
        if isinstance(value, list):
            return f"[{','.join(map(self._write_value, value))}]"
        if isinstance(value, Mapping):
            pairs = (
                f"{self._write_key(key)}:{self._write_value(item)}" for key, item in value.items()
            )
            return f"{{{','.join(pairs)}}}"
        return quote(value)

    def _write_key(self, key: str) -> str:
        return key if BARE_KEY.fullmatch(key) else self.quote + key + self.quote


def _read_key(source: TextSource, body: BracedBody) -> Steps[str]:
    pieces: list[str] = []
    if (yield from source.match_after_space((body.quote,))):
        yield from source.copy_until(Stops([body.quote]), pieces.append)
        yield from source.expect_after_space(":")
        return "".join(pieces)
    key, stop = yield from source.read_until(Stops([":", ",", "{", "}"]), MAX_KEY_CHARS)
    if stop != ":" or not key.strip():
        raise Malformed("the name of an argument is missing")
    return key.strip()


def _copy_value(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    if depth == 0:
        raise Malformed(f"values are nested more than {MAX_DEPTH} deep")
    opener = yield from source.match_after_space((body.quote, "[", "{"))
    if opener == "[":
        yield from _copy_list(source, body, write, depth)
    elif opener == "{":
        yield from _copy_object(source, body, write, depth)
    elif opener:
        write('"')
        yield from source.copy_until(Stops([body.quote]), lambda text: write(escape(text)))
        write('"')
    else:
        write(_bare_to_json((yield from source.read_while(BARE)).strip()))


def _copy_list(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    write("[")
    gap = ""
    while not (yield from source.match_after_space(("]",))):
        write(gap)
        gap = ", "
        yield from _copy_value(source, body, write, depth - 1)
        if (yield from source.peek_after_space()) != "]":
            yield from source.expect_after_space(",")
    write("]")


def _copy_object(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    arguments = ArgumentWriter(write)
    while not (yield from source.match_after_space(("}",))):
        arguments.key((yield from _read_key(source, body)))
        yield from _copy_value(source, body, write, depth - 1)
        if (yield from source.peek_after_space()) != "}":
            yield from source.expect_after_space(",")
    arguments.end()


def _bare_to_json(text: str) -> str:
    """Return a value without quotes as JSON: as it is where it is JSON, else as a string."""
    if not text:
        raise Malformed("a value is missing")
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return quote(text)
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _make_dialect(mark: str) -> LiteralDialect:
    def write_any_string(writer: GrammarWriter) -> str:
        return seq(writer.exact(mark), writer.short_until(mark, r"(.|\n)*"))

    def write_strings(texts: Sequence[str], writer: GrammarWriter) -> str:
        named = [text for text in texts if text]
        words = writer.words(map(quote_regex, named)) if named else ""
        inner = writer.optional(words) if len(named) < len(texts) else words
        return seq(writer.exact(mark), inner, writer.exact(mark))

    def write_any_key(names: Sequence[str], writer: GrammarWriter) -> str:
        colon = f"{SPACE}:{SPACE}"
        bare = writer.pattern(KEY_TERMINAL + colon)
        listed = [name for name in names if BARE_KEY.fullmatch(name)]
        if listed:
            bare = writer.other_than(bare, writer.words(map(quote_regex, listed), end=colon))
        return choice(bare, seq(write_any_string(writer), writer.pattern(colon)))

    def write_key(name: str, writer: GrammarWriter) -> str:
        if BARE_KEY.fullmatch(name):
            return writer.plain(name)
        return write_strings([name], writer)

    return LiteralDialect(
        name="braces",
        true="true",
        false="false",
        null="null",
        space=SPACE,
        write_any_string=write_any_string,
        write_strings=write_strings,
        write_any_key=write_any_key,
        write_key=write_key,
    )


def _read_quote(text: str) -> str | None:
    before, _, rest = text.partition(f"{NAMES[0]}{{{KEYS[0][0]}:")
    mark, value, rest = rest.partition(VALUES[0][0])
    if not before or not value or not mark.strip() or mark.strip() == '"':
        return None
    return mark if rest.startswith(mark) else None


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(NAMES[number] + "{")
    last_value = text.find(VALUES[number][1], start)
    end = text.find("}", last_value)
    return (start, end + 1) if min(start, last_value, end) >= 0 else None

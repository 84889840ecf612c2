"""Writes calls as Gemma 4 does: `call:NAME{key:<|"|>text<|"|>,other:1}`."""

from __future__ import annotations

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, seq
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.reply_format import BracedBody

KEY = "[A-Za-z_][A-Za-z0-9_.\\x2d]{0,63}"


def write_call(body: BracedBody, tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for a call of one tool."""
    values = LiteralWriter(_dialect(body.quote), tool.schema, writer)
    arguments = values.value(
        {**tool.schema, "type": "object"} if tool.is_strict else {"type": "object"}
    )
    return seq(writer.exact(body.name_start), writer.plain(tool.name), arguments)


def _dialect(quote: str) -> LiteralDialect:
    return LiteralDialect(
        true="true",
        false="false",
        null="null",
        write_any_string=lambda writer: seq(
            writer.exact(quote), writer.short_until(quote, r"(.|\n)*")
        ),
        write_string=lambda text, writer: seq(
            writer.exact(quote), writer.plain(text), writer.exact(quote)
        ),
        write_any_key=lambda writer: writer.pattern(KEY),
        write_key=lambda name, writer: writer.plain(name),
    )

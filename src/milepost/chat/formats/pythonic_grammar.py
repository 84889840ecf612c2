"""Writes calls as Python writes them: `[name(key="value", other=1)]`."""

from __future__ import annotations

import json

from milepost.chat.formats.call_schemas import CallableTool, properties_of, takes_any
from milepost.chat.formats.grammar_writer import GrammarWriter, choice, list_in_order, seq
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter

NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"
# Escapes that mean the same in JSON and in Python.
SHARED_ESCAPES = 'nrtbf\\"'
SINGLE_QUOTED = r"'([^'\\\x00-\x1F\x7F]|\\[nrtbf'\\])*'"


def write_call(tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for a call of one tool."""
    values = LiteralWriter(PYTHON, tool.schema, writer)
    named = [
        (seq(writer.plain(f"{one.name}="), values.value(one.schema)), one.is_required)
        for one in (properties_of(tool.schema) if tool.is_strict else ())
    ]
    if named:
        arguments = list_in_order(named, values.comma, writer)
    elif takes_any(tool.schema):
        other = seq(writer.pattern(NAME), writer.plain("="), values.anything())
        arguments = writer.optional(seq(other, f"({seq(values.comma, other)})*"))
    else:
        arguments = ""
    return seq(writer.plain(f"{tool.name}("), writer.space, arguments, writer.space, '")"')


def _write_any_string(writer: GrammarWriter) -> str:
    doubled = writer.json({"type": "string"}, json_allowed_escapes=SHARED_ESCAPES)
    return choice(doubled, writer.pattern(SINGLE_QUOTED))


def _write_string(text: str, writer: GrammarWriter) -> str:
    return writer.plain(json.dumps(text, ensure_ascii=False))


PYTHON = LiteralDialect(
    true="True",
    false="False",
    null="None",
    write_any_string=_write_any_string,
    write_string=_write_string,
    write_any_key=_write_any_string,
    write_key=_write_string,
)

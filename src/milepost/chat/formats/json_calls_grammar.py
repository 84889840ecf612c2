"""Writes calls that are JSON objects, alone or in a list."""

from __future__ import annotations

import json

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, choice, list_in_order, seq
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter
from milepost.chat.formats.reply_format import JsonBody

CALL_ID = "[a-zA-Z0-9_\\x2d]{1,40}"
# One character of a string in a JSON string, where a quote is \\\" and a line break \\n.
INNER_CHARACTER = r'([^"\\\x00-\x1F\x7F]|\\\\[nrtbf]|\\\\\\"|\\\\\\\\)'


def write_call(body: JsonBody, tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for a call of one tool: the name first, then its arguments."""
    name = _member(body.name_key, writer.plain(_quoted(tool.name)), writer)
    arguments = _member(body.arguments_key, _write_arguments(body, tool, writer), writer)
    members = [(name, True), (arguments, tool.is_strict)]
    if body.wrapper_key:
        inner = _member(body.wrapper_key, _write_object(members, writer), writer)
        members = [(_member("type", writer.plain('"function"'), writer), False), (inner, True)]
    if not body.id_key:
        return _write_object(members, writer)
    call_id = (_member(body.id_key, writer.pattern(f'"{CALL_ID}"'), writer), False)
    return choice(
        _write_object([call_id, *members], writer), _write_object([*members, call_id], writer)
    )


def write_list(call: str, writer: GrammarWriter, *, takes_several: bool) -> str:
    """Return an expression for calls in a JSON list."""
    more = f"({seq(_comma(writer), call)})*" if takes_several else ""
    return seq(writer.plain("["), writer.space, call, more, writer.space, writer.plain("]"))


def _write_arguments(body: JsonBody, tool: CallableTool, writer: GrammarWriter) -> str:
    schema = tool.schema if tool.is_strict else {"type": "object"}
    if not body.arguments_are_text:
        return writer.json(schema)
    values = LiteralWriter(JSON_IN_TEXT, tool.schema, writer)
    return seq(writer.plain('"'), values.value({**schema, "type": "object"}), writer.plain('"'))


def _write_object(members: list[tuple[str, bool]], writer: GrammarWriter) -> str:
    listed = list_in_order(members, _comma(writer), writer)
    return seq(writer.plain("{"), writer.space, listed, writer.space, writer.plain("}"))


def _member(key: str, value: str, writer: GrammarWriter) -> str:
    return seq(writer.plain(_quoted(key)), writer.space, writer.plain(":"), writer.space, value)


def _comma(writer: GrammarWriter) -> str:
    return seq(writer.space, writer.plain(","), writer.space)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_any_inner_string(writer: GrammarWriter) -> str:
    return writer.pattern(rf'\\"{INNER_CHARACTER}*\\"')


def _write_inner_string(text: str, writer: GrammarWriter) -> str:
    return writer.plain(_quoted(_quoted(text))[1:-1])


# JSON in a JSON string; line breaks between its parts would need escapes, which none needs.
JSON_IN_TEXT = LiteralDialect(
    true="true",
    false="false",
    null="null",
    write_any_string=_write_any_inner_string,
    write_string=_write_inner_string,
    write_any_key=_write_any_inner_string,
    write_key=_write_inner_string,
)

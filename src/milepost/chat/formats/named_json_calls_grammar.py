"""Writes calls whose name stands before the JSON of their arguments."""

from __future__ import annotations

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, seq
from milepost.chat.formats.reply_format import NamedJsonBody

CALL_ID = "[a-zA-Z0-9_\\x2d]{1,40}"
NUMBER_ID = "[0-9]{1,3}"  # Kimi counts the calls of a conversation


def write_call(body: NamedJsonBody, tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for a call of one tool."""
    call_id = ""
    if body.id_start:
        numbered = body.id_start == ":"
        pattern = writer.pattern(NUMBER_ID if numbered else CALL_ID)
        call_id = seq(writer.exact(body.id_start), pattern)
        call_id = call_id if numbered else writer.optional(call_id)
    name_end = body.name_end.rstrip()
    return seq(
        writer.exact(body.name_start),
        writer.plain(tool.name),
        call_id,
        seq(writer.exact(name_end), writer.space) if name_end else writer.exact(body.name_end),
        writer.json(tool.schema if tool.is_strict else {"type": "object"}),
        writer.closing(body.arguments_end),
    )

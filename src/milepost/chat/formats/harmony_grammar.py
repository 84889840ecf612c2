"""Writes whole replies of gpt-oss: every part stands in a channel of its own.

<|channel|>analysis<|message|>… <|end|><|start|>assistant
<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}      (the end)
<|channel|>final<|message|>…                                                 (the end)
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, Schema, choice, seq

NEXT = "<|start|>assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelParts:
    """What a reply may hold."""

    calls: tuple[str, ...]  # expressions, from behind `functions.`
    must_call: bool
    schema: Schema | None  # of the answer; None: any text
    may_reason: bool
    is_reasoning: bool  # the prompt ends inside the analysis channel


def write_call(tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for a call of one tool, from behind its `functions.`."""
    mark = writer.optional(writer.exact("<|constrain|>"))
    kind = writer.optional(seq(writer.space, mark, writer.plain("json")))
    name = writer.plain(tool.name)
    # The recipient may stand in the head of the message, where templates put it, or behind it.
    head = seq(name, writer.exact("<|channel|>"), writer.plain("commentary"), kind)
    behind = seq(name, kind)
    arguments = writer.json(tool.schema if tool.is_strict else {"type": "object"})
    return seq(
        choice(head, behind), writer.space, writer.exact("<|message|>"), arguments, _end(writer)
    )


def write_channels(parts: ChannelParts, writer: GrammarWriter) -> str:
    """Return an expression for a reply that ends with a call, or with an answer."""
    ends = []
    if parts.calls:
        recipient = writer.plain(" to=functions.")
        channel = choice(writer.plain("commentary"), writer.plain("analysis"))
        opening = choice(seq(writer.exact("<|channel|>"), channel, recipient), recipient)
        ends.append(seq(opening, choice(*parts.calls)))
    if not parts.must_call:
        ends.append(_write_final(parts.schema, writer))
    before = [_write_talk("analysis", writer)] if parts.may_reason else []
    if parts.calls:
        before.append(_write_talk("commentary", writer))
    lead = f"{choice(*before)}*" if before else ""
    rest = seq(lead, choice(*ends))
    return seq(_write_rest_of_talk(writer), rest) if parts.is_reasoning else rest


def _write_final(schema: Schema | None, writer: GrammarWriter) -> str:
    kind = seq(writer.space, writer.exact("<|constrain|>"), writer.plain("json"))
    channel = seq(writer.exact("<|channel|>"), writer.plain("final"))
    if schema is None:
        return seq(channel, writer.exact("<|message|>"), writer.text(["<|channel|>"]))
    json = writer.json(schema)
    return seq(channel, writer.optional(kind), writer.exact("<|message|>"), json)


def _write_talk(channel: str, writer: GrammarWriter) -> str:
    opening = seq(writer.exact("<|channel|>"), writer.plain(channel), writer.exact("<|message|>"))
    return seq(opening, _write_rest_of_talk(writer))


def _write_rest_of_talk(writer: GrammarWriter) -> str:
    return seq(writer.until("<|end|>", ["<|start|>", "<|channel|>"]), writer.exact(NEXT))


def _end(writer: GrammarWriter) -> str:
    return writer.optional(writer.exact("<|call|>"))

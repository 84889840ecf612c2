"""What a reply must look like, as a grammar for llguidance: calls, JSON, and what may stand around.

    forced      [reasoning] [a few words] calls
    JSON        [reasoning] value
    lazy        anything, in which a call is well-formed from its start marker on

The format of the reply is the template's own, so a model writes what it was trained to write.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import (
    MAX_SPACE,
    GrammarWriter,
    SpecialTokens,
    choice,
    seq,
)
from milepost.chat.formats.json_values import write_json
from milepost.chat.formats.reply_format import GrammarSpec, ToolCallFormat

MAX_WORDS_CHARS = 240  # of text before a call that must come; arbitrary: two sentences


def write_reply_grammar(spec: GrammarSpec, specials: SpecialTokens) -> str:
    """Return the grammar, "" when there is nothing to hold a reply to."""
    writer = GrammarWriter(specials)
    calls = spec.reply_format.tool_calls
    if spec.schema is None and (calls is None or not spec.tools):
        return ""
    if calls is not None and calls.body.reads_whole_reply:
        return writer.finish(calls.body.write_whole_grammar(spec, writer))
    if not spec.tools:
        calls = None
    if calls is None or spec.schema is not None and not spec.must_call:
        return writer.finish(_write_json(spec, calls, writer))
    if spec.must_call:
        return writer.finish(_write_forced(spec, calls, writer))
    if calls.start_marker:
        return writer.finish(_write_lazy(spec, calls, writer))
    if must_hold_calls(spec.tools, takes_several=spec.takes_several, is_narrowed=spec.is_narrowed):
        return writer.finish(_write_bare(spec, calls, writer))
    return ""


def must_hold_calls(
    tools: Sequence[CallableTool], *, takes_several: bool, is_narrowed: bool
) -> bool:
    """Return whether calls that need not come are asked to be more than well-formed."""
    if not tools:
        return False
    return is_narrowed or not takes_several or any(tool.is_strict for tool in tools)


# --- replies -----------------------------------------------------------------------------


def _write_forced(spec: GrammarSpec, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    marker = calls.start_marker
    if marker and spec.takes_words:
        lead = writer.short_until(marker, rf"(.|\n){{0,{MAX_WORDS_CHARS}}}")
    else:
        lead = seq(writer.space, writer.exact(marker))
    return seq(_write_reasoning(spec, writer), lead, _write_calls(spec, calls, writer))


def _write_json(spec: GrammarSpec, calls: ToolCallFormat | None, writer: GrammarWriter) -> str:
    assert spec.schema is not None
    around = spec.reply_format.content
    value = seq(
        writer.start_marker(around.start),
        write_json(spec.schema, writer),
        writer.end_marker(around.end),
    )
    if calls is not None:
        value = choice(
            value, seq(writer.exact(calls.start_marker), _write_calls(spec, calls, writer))
        )
    return seq(_write_reasoning(spec, writer), writer.space, value)


def _write_lazy(spec: GrammarSpec, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Write what leaves text, and reasoning wherever it stands, as free as without a grammar."""
    marker = calls.start_marker
    reasoning = spec.reply_format.reasoning
    beside = [marker, *([reasoning.start] if reasoning else ())]
    call = seq(writer.until(marker, beside), _write_calls(spec, calls, writer))
    ends = [writer.text(beside)]
    units = [call] if spec.takes_several else []
    if not spec.takes_several:
        ends.append(seq(call, writer.space))
    if reasoning is not None:
        begun = writer.until(reasoning.start, beside)
        units.append(seq(begun, writer.until(reasoning.end)))
        ends.append(seq(begun, writer.text([reasoning.end])))
    rest = seq(f"{choice(*map(writer.rule, units))}*" if units else "", choice(*ends))
    if spec.reasoning != "open" or reasoning is None:
        return rest
    return choice(seq(writer.until(reasoning.end), rest), writer.text([reasoning.end]))


def _write_bare(spec: GrammarSpec, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Write calls without a marker: text that begins like one must be one."""
    text = seq(writer.pattern(r"[^{\x5b \t\r\n]"), writer.text())
    called = _write_calls(spec, calls, writer)
    rest = seq(writer.space, writer.optional(f"{called} | {text}"))
    return seq(_write_reasoning(spec, writer), rest)


# --- their parts -------------------------------------------------------------------------


def _write_reasoning(spec: GrammarSpec, writer: GrammarWriter) -> str:
    reasoning = spec.reply_format.reasoning
    if reasoning is None or spec.reasoning == "none":
        return ""
    calls = spec.reply_format.tool_calls if spec.tools else None
    beside = [calls.start_marker] if calls is not None else []  # a call in it would be one
    if spec.reasoning == "open":
        return writer.until(reasoning.end, beside)
    begun = writer.short_until(reasoning.start.strip(), rf"[ \t\r\n]{{0,{MAX_SPACE}}}")
    return writer.optional(seq(begun, writer.until(reasoning.end, beside)))


def _write_calls(spec: GrammarSpec, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Return an expression for one call or several, from after the first marker on."""
    several = spec.takes_several and calls.takes_several
    body = calls.body
    one = choice(
        *(writer.rule(body.write_call_grammar(tool, calls, writer)) for tool in spec.tools)
    )
    if body.is_list:
        return seq(writer.space, _write_list(one, several, writer), _write_ends(calls, writer))
    one = seq(one, "" if body.holds_call_end else writer.end_marker(calls.call.end))
    call = seq(writer.start_marker(calls.call.start), one)
    separator = seq(writer.space, writer.exact(calls.separator.strip()))
    has_seam = bool(calls.start_marker or calls.separator.strip())
    more = f"({seq(separator, writer.space, call)})*" if several and has_seam else ""
    if calls.section.start.strip():
        return seq(writer.space, call, more, writer.end_marker(calls.section.end))
    return seq(writer.space, one, more)


def _write_list(call: str, several: bool, writer: GrammarWriter) -> str:
    """Return an expression for calls in a list."""
    comma = seq(writer.space, writer.plain(","), writer.space)
    more = f"({seq(comma, call)})*" if several else ""
    return seq(writer.plain("["), writer.space, call, more, writer.space, writer.plain("]"))


def _write_ends(calls: ToolCallFormat, writer: GrammarWriter) -> str:
    return seq(writer.end_marker(calls.call.end), writer.end_marker(calls.section.end))

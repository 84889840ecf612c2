"""What a reply must look like, as a grammar for llguidance: calls, JSON, and what may stand around.

    forced      [reasoning] [a few words] calls
    JSON        [reasoning] value
    lazy        anything, in which a call is well-formed from its start marker on

The format of the reply is the template's own, so a model writes what it was trained to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from milepost.chat.formats import (
    braced_calls_grammar,
    harmony_grammar,
    json_calls_grammar,
    named_json_calls_grammar,
    pythonic_grammar,
    tagged_calls_grammar,
)
from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import (
    MAX_SPACE,
    GrammarWriter,
    Schema,
    SpecialTokens,
    choice,
    seq,
)
from milepost.chat.formats.reply_format import (
    BracedBody,
    CallBody,
    HarmonyBody,
    JsonBody,
    NamedJsonBody,
    PythonicBody,
    ReplyFormat,
    TaggedBody,
    ToolCallFormat,
)

# "open": the prompt ends inside it; "possible": the model may begin it; "none": it must not.
ReasoningState = Literal["open", "possible", "none"]
MAX_WORDS_CHARS = 240  # of text before a call that must come; arbitrary: two sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWish:
    """What a reply is to be."""

    reply_format: ReplyFormat
    reasoning: ReasoningState
    tools: Sequence[CallableTool] = ()  # that it may call
    must_call: bool = False
    takes_words: bool = False  # a call that must come may have a few words before it
    takes_several: bool = True  # calls
    is_narrowed: bool = False  # the prompt tells of more tools than may be called
    schema: Schema | None = None  # of its text; None: any text


def write_reply_grammar(wish: ReplyWish, specials: SpecialTokens) -> str:
    """Return the grammar, "" when there is nothing to hold a reply to."""
    writer = GrammarWriter(specials)
    calls = wish.reply_format.tool_calls
    is_harmony = calls is not None and isinstance(calls.body, HarmonyBody)
    if not wish.tools or calls is None:
        if wish.schema is None:
            return ""
        calls = None
    if is_harmony:
        return writer.finish(_write_harmony(wish, writer))
    if calls is None or wish.schema is not None and not wish.must_call:
        return writer.finish(_write_json(wish, calls, writer))
    if wish.must_call:
        return writer.finish(_write_forced(wish, calls, writer))
    if opening_of(calls):
        return writer.finish(_write_lazy(wish, calls, writer))
    if must_hold_calls(wish.tools, takes_several=wish.takes_several, is_narrowed=wish.is_narrowed):
        return writer.finish(_write_bare(wish, calls, writer))
    return ""


def must_hold_calls(
    tools: Sequence[CallableTool], *, takes_several: bool, is_narrowed: bool
) -> bool:
    """Return whether calls that need not come are asked to be more than well-formed."""
    if not tools:
        return False
    return is_narrowed or not takes_several or any(tool.is_strict for tool in tools)


def opening_of(calls: ToolCallFormat) -> str:
    """Return the marker that a call begins with, "" where it has none."""
    return calls.section.start.strip() or calls.call.start.strip()


# --- replies -----------------------------------------------------------------------------


def _write_harmony(wish: ReplyWish, writer: GrammarWriter) -> str:
    return harmony_grammar.write_channels(
        harmony_grammar.ChannelParts(
            calls=tuple(harmony_grammar.write_call(tool, writer) for tool in wish.tools),
            must_call=wish.must_call,
            schema=wish.schema,
            may_reason=wish.reasoning != "none",
            is_reasoning=wish.reasoning == "open",
        ),
        writer,
    )


def _write_forced(wish: ReplyWish, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    opening = opening_of(calls)
    if opening and wish.takes_words:
        lead = writer.short_until(opening, rf"(.|\n){{0,{MAX_WORDS_CHARS}}}")
    else:
        lead = seq(writer.space, writer.exact(opening))
    return seq(_write_reasoning(wish, writer), lead, _write_calls(wish, calls, writer))


def _write_json(wish: ReplyWish, calls: ToolCallFormat | None, writer: GrammarWriter) -> str:
    assert wish.schema is not None
    around = wish.reply_format.content
    value = seq(writer.opening(around.start), writer.json(wish.schema), writer.closing(around.end))
    if calls is not None:
        value = choice(
            value, seq(writer.exact(opening_of(calls)), _write_calls(wish, calls, writer))
        )
    return seq(_write_reasoning(wish, writer), writer.space, value)


def _write_lazy(wish: ReplyWish, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Write what leaves text, and reasoning wherever it stands, as free as without a grammar."""
    opening = opening_of(calls)
    reasoning = wish.reply_format.reasoning
    beside = [opening, *([reasoning.start] if reasoning else ())]
    call = seq(writer.until(opening, beside), _write_calls(wish, calls, writer))
    ends = [writer.text(beside)]
    units = [call] if wish.takes_several else []
    if not wish.takes_several:
        ends.append(seq(call, writer.space))
    if reasoning is not None:
        begun = writer.until(reasoning.start, beside)
        units.append(seq(begun, writer.until(reasoning.end)))
        ends.append(seq(begun, writer.text([reasoning.end])))
    rest = seq(f"{choice(*map(writer.rule, units))}*" if units else "", choice(*ends))
    if wish.reasoning != "open" or reasoning is None:
        return rest
    return choice(seq(writer.until(reasoning.end), rest), writer.text([reasoning.end]))


def _write_bare(wish: ReplyWish, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Write calls without a marker: text that begins like one must be one."""
    text = seq(writer.pattern(r"[^{\x5b \t\r\n]"), writer.text())
    called = _write_calls(wish, calls, writer)
    rest = seq(writer.space, writer.optional(f"{called} | {text}"))
    return seq(_write_reasoning(wish, writer), rest)


# --- their parts -------------------------------------------------------------------------


def _write_reasoning(wish: ReplyWish, writer: GrammarWriter) -> str:
    reasoning = wish.reply_format.reasoning
    if reasoning is None or wish.reasoning == "none":
        return ""
    calls = wish.reply_format.tool_calls if wish.tools else None
    beside = [opening_of(calls)] if calls is not None else []  # a call in it would be one
    if wish.reasoning == "open":
        return writer.until(reasoning.end, beside)
    begun = writer.short_until(reasoning.start.strip(), rf"[ \t\r\n]{{0,{MAX_SPACE}}}")
    return writer.optional(seq(begun, writer.until(reasoning.end, beside)))


def _write_calls(wish: ReplyWish, calls: ToolCallFormat, writer: GrammarWriter) -> str:
    """Return an expression for one call or several, from behind the first marker."""
    several = wish.takes_several and calls.takes_several
    one = choice(*(writer.rule(_write_body(calls, tool, writer)) for tool in wish.tools))
    if is_list(calls.body):
        listed = json_calls_grammar.write_list(one, writer, takes_several=several)
        return seq(writer.space, listed, _write_ends(calls, writer))
    is_ended = isinstance(calls.body, TaggedBody) and not calls.body.arguments_end.strip()
    one = seq(one, "" if is_ended else writer.closing(calls.call.end))
    call = seq(writer.opening(calls.call.start), one)
    separator = seq(writer.space, writer.exact(calls.separator.strip()))
    has_seam = bool(opening_of(calls) or calls.separator.strip())
    more = f"({seq(separator, writer.space, call)})*" if several and has_seam else ""
    if calls.section.start.strip():
        return seq(writer.space, call, more, writer.closing(calls.section.end))
    return seq(writer.space, one, more)


def is_list(body: CallBody) -> bool:
    """Return whether all calls of a reply stand in one list."""
    return isinstance(body, PythonicBody) or (isinstance(body, JsonBody) and body.in_list)


def _write_ends(calls: ToolCallFormat, writer: GrammarWriter) -> str:
    return seq(writer.closing(calls.call.end), writer.closing(calls.section.end))


def _write_body(calls: ToolCallFormat, tool: CallableTool, writer: GrammarWriter) -> str:
    match body := calls.body:
        case JsonBody():
            return json_calls_grammar.write_call(body, tool, writer)
        case NamedJsonBody():
            return named_json_calls_grammar.write_call(body, tool, writer)
        case TaggedBody():
            end = body.arguments_end.strip() or calls.call.end.strip()
            return tagged_calls_grammar.write_call(body, end, tool, writer)
        case PythonicBody():
            return pythonic_grammar.write_call(tool, writer)
        case BracedBody():
            return braced_calls_grammar.write_call(body, tool, writer)
        case HarmonyBody():
            return harmony_grammar.write_call(tool, writer)

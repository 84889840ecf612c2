"""What a request asks of its replies: which tools they may call, and which schema text follows.

Dialects of the API read `ReplyRules` out of their fields; `grammar` makes a grammar of the rules
and the format in which the model writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import Schema, SpecialTokens
from milepost.chat.formats.reply_format import GrammarSpec, ReasoningState, ReplyFormat
from milepost.chat.replies.grammar import must_hold_calls, write_reply_grammar
from milepost.chat.replies.schema_check import GrammarChecker
from milepost.errors import InvalidRequest

ChoiceMode = Literal["auto", "none", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools a reply may or must call."""

    mode: ChoiceMode = "auto"
    names: tuple[str, ...] = ()  # the only tools that may be called; empty: all

    @property
    def must_call(self) -> bool:
        """Whether a reply without a call is none."""
        return self.mode in ("required", "named")

    def allows(self, name: str) -> bool:
        """Say whether a tool may be called, if any may."""
        return not self.names or name in self.names

    def select(self, tools: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the tools of a conversation that may be called, if any may."""
        return [tool for tool in tools if self.allows(tool["function"]["name"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """What replies are held to."""

    schema: Schema | None = None  # of the text
    tools: Sequence[CallableTool] = ()  # that may be called
    choice: ToolChoice = field(default_factory=ToolChoice)
    takes_several: bool = True  # calls

    @property
    def must_hold(self) -> bool:
        """Whether the request asks for something; else calls are only kept well-formed."""
        holds_calls = must_hold_calls(
            self.tools, takes_several=self.takes_several, is_narrowed=bool(self.choice.names)
        )
        return self.schema is not None or self.choice.must_call or holds_calls


def make_constraint(
    rules: ReplyRules,
    reply_format: ReplyFormat,
    reasoning: ReasoningState,
    specials: SpecialTokens,
    checker: GrammarChecker,
) -> str:
    """Return the grammar of replies, "" where there is nothing to hold them to.

    Raises InvalidRequest when a reply must be what the model's format, or llguidance, cannot do.
    """
    if rules.choice.must_call and reply_format.tool_calls is None:
        raise _invalid(
            "tool_choice",
            "asks for a call, but the chat template does not show how the model writes one; "
            "use a template with tools (--chat-template-file)",
        )
    if not rules.tools and rules.schema is None:
        return ""
    spec = GrammarSpec(
        reply_format=reply_format,
        reasoning=reasoning,
        tools=rules.tools,
        must_call=rules.choice.must_call,
        takes_words=rules.choice.mode == "required",
        takes_several=rules.takes_several,
        is_narrowed=bool(rules.choice.names),
        schema=rules.schema,
    )
    grammar = write_reply_grammar(spec, specials)
    fault = checker.find_fault(grammar) if grammar else ""
    if not fault:
        return grammar
    if rules.must_hold:
        raise InvalidRequest(f"the reply cannot be held to the request: {fault}")
    return ""


def make_value_constraint(schema: Schema, checker: GrammarChecker) -> str:
    """Return the grammar of a text that is nothing but a value of a schema."""
    spec = GrammarSpec(reply_format=ReplyFormat(), reasoning="none", schema=schema)
    grammar = write_reply_grammar(spec, SpecialTokens())
    if fault := checker.find_fault(grammar):
        raise InvalidRequest(f"the text cannot be held to the schema: {fault}")
    return grammar


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)

"""What is decided about a reply before it is written, once for each request.

How it is read (`ReplyPlan`), which control tokens of it are shown, how long it may reason, and what
it is held to (`ReplyRules`). Dialects of the API fill the records of their fields; `grammar` writes
the grammar of the rules in the format of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import Schema, SpecialTokens
from milepost.chat.formats.reply_format import (
    GrammarSpec,
    ReasoningFormat,
    ReasoningState,
    ReplyFormat,
)
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS
from milepost.chat.replies.grammar import must_hold_calls, write_reply_grammar
from milepost.chat.replies.schema_check import GrammarChecker
from milepost.chat.replies.stream_parser import RepeatingParser, ReplyParser
from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest
from milepost.kinds import ReasoningPlace
from milepost.protocol.messages import ReasoningLimit

ChoiceMode = Literal["auto", "none", "required", "named"]
NO_LIMIT = -1
SWITCHES = ("enable_thinking", "thinking")  # as templates name them


# --- how replies are read ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """How the replies to one prompt are read."""

    reply_format: ReplyFormat
    in_reasoning: bool = False  # the prompt ends inside a reasoning block
    tools: tuple[Mapping[str, Any], ...] = ()  # those that may be called
    repeats_reasoning: bool = False  # content has the reasoning too
    lead: str = ""  # of the content: the start of reasoning, which the prompt holds

    def make_parser(self) -> ReplyParser:
        """Return a parser for one reply."""
        make = RepeatingParser if self.repeats_reasoning else ReplyParser
        return make(
            self.reply_format,
            in_reasoning=self.in_reasoning,
            tools=self.tools,
            lead=self.lead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """How a request wants its replies to be read."""

    reasoning: ReasoningPlace = "auto"
    parses_calls: bool = True
    parses_anything: bool = True


def plan_reply(
    reply_format: ReplyFormat,
    generation_prompt: str,
    tools: Iterable[Mapping[str, Any]],
    options: ReplyOptions,
) -> ReplyPlan:
    """Return the plan; `generation_prompt` is the end of the prompt that opens the reply."""
    if not options.parses_anything:
        return ReplyPlan(reply_format=ReplyFormat())
    reasoning = reply_format.reasoning
    in_reasoning, lead = is_reasoning_open(generation_prompt, reasoning), ""
    if options.reasoning == "none" and reasoning is not None:
        reply_format = replace(reply_format, reasoning=None)
        start = generation_prompt.rfind(reasoning.start.strip())
        lead = generation_prompt[start:] if in_reasoning else ""
    return ReplyPlan(
        reply_format=reply_format,
        in_reasoning=in_reasoning,
        lead=lead,
        tools=tuple(tools) if options.parses_calls else (),
        repeats_reasoning=options.reasoning == "deepseek-legacy",
    )


def is_reasoning_open(generation_prompt: str, reasoning: ReasoningFormat | None) -> bool:
    """Say whether the part of a prompt that opens the reply leaves a reasoning block open."""
    start = reasoning.start.strip() if reasoning is not None else ""
    if reasoning is None or not start:
        return False
    return generation_prompt.rfind(start) > generation_prompt.rfind(reasoning.end.strip())


def find_shown_tokens(
    reply_format: ReplyFormat, *, has_tools: bool, controls: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the control tokens, of all `controls` by their text, that markers are spelled with.

    Without tools, those of calls keep having no text, as all other control tokens.
    """
    calls = reply_format.tool_calls
    if calls is not None and not has_tools and not calls.body.reads_whole_reply:
        reply_format = replace(reply_format, tool_calls=None)
    markers = "\n\n".join(reply_format.markers)
    return tuple(sorted(token for text, token in controls.items() if text and text in markers))


# --- how long they may reason -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """What the server and a request want of reasoning."""

    mode: str = "auto"  # "on", "off", or as the template does it
    max_tokens: int = NO_LIMIT
    message: str = ""  # written before the end marker when the tokens are used up

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return variables for the template; none where it may do as it likes."""
        if self.mode == "off" or self.max_tokens == 0:
            return dict.fromkeys(SWITCHES, False)
        return dict.fromkeys(SWITCHES, True) if self.mode == "on" else {}


def make_limit(
    options: ReasoningOptions, reasoning: ReasoningFormat | None, vocab: Vocab, *, is_open: bool
) -> ReasoningLimit | None:
    """Return what the engine has to know, None where there is no limit."""
    if reasoning is None or options.max_tokens == NO_LIMIT:
        return None
    start, end = reasoning.start.strip(), reasoning.end.strip()
    message = vocab.tokenize_continuation(options.message, parse_special=False)
    return ReasoningLimit(
        start=start,
        end=end,
        is_open=is_open,
        max_tokens=options.max_tokens,
        ending=(*message, *vocab.tokenize_continuation(end, parse_special=True)),
    )


def reasoning_state(kwargs: Mapping[str, Any], *, is_open: bool) -> ReasoningState:
    """Return where reasoning may stand in a reply to a prompt that was rendered with `kwargs`."""
    if is_open:
        return "open"
    return "none" if kwargs.get("enable_thinking") is False else "possible"


# --- what they are held to --------------------------------------------------------------


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
    _check_names(rules.tools, reply_format)
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


def _check_names(tools: Iterable[CallableTool], reply_format: ReplyFormat) -> None:
    """Raise InvalidRequest for a tool whose calls could not be told from text."""
    if reply_format.tool_calls is None:
        return
    body = reply_format.tool_calls.body
    for tool in tools:
        if len(tool.name) > MAX_NAME_CHARS or not body.can_write_name(tool.name):
            name = json.dumps(tool.name[:MAX_NAME_CHARS], ensure_ascii=False)
            raise _invalid(
                f"{tool.place}.function.name",
                f"is {name}, which cannot be called in the format of this model; "
                "use letters, digits, '_' and '-'",
            )


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)

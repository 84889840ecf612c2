"""What a request asks of its replies: which tools they may call, and which schema text follows.

    response_format, json_schema, tools, tool_choice, parallel_tool_calls  ──>  ReplyRules

Knows the fields as OpenAI and llama-server write them; `grammar` makes a grammar of the rules and
the format in which the model writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import Schema, SpecialTokens
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.grammar import (
    ReasoningState,
    ReplyWish,
    must_hold_calls,
    write_reply_grammar,
)
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest

ChoiceMode = Literal["auto", "none", "required", "named"]
ANY_OBJECT: Schema = {"type": "object"}
MAX_SHOWN_CHARS = 80  # of a bad value in an error message; arbitrary


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """OpenAI's `tool_choice`."""

    mode: ChoiceMode = "auto"
    names: tuple[str, ...] = ()  # the only tools that may be called; empty: all

    @property
    def must_call(self) -> bool:
        """Whether a reply without a call is none."""
        return self.mode in ("required", "named")

    def allows(self, name: str) -> bool:
        """Say whether a tool may be called, if any may."""
        return not self.names or name in self.names


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


# --- fields ------------------------------------------------------------------------------


def parse_response_format(value: object, checker: GrammarChecker) -> Schema | None:
    """Return the schema that `response_format` asks for, None for any text."""
    if value is None:
        return None
    kind = value.get("type", "text") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise _invalid(
            "response_format",
            'must be an object with the type "text", "json_object" or "json_schema", '
            f"but is {_shown(value)}",
        )
    if kind == "text":
        return None
    where, inner = "response_format", value
    if isinstance(value.get("json_schema"), dict):  # OpenAI's nesting; llama-server has neither
        where, inner = "response_format.json_schema", value["json_schema"]
    if inner.get("schema") is None:
        if kind == "json_schema":
            raise _invalid(f"{where}.schema", "is missing; send the JSON schema there")
        return ANY_OBJECT
    is_exact = inner.get("strict") is True
    return prepare_schema(inner["schema"], f"{where}.schema", checker, is_exact=is_exact)


def parse_tool_choice(value: object, names: Sequence[str]) -> ToolChoice:
    """Return what `tool_choice` asks for; `names` are those of the tools of the request."""
    if value is None:
        return ToolChoice()
    if value in ("auto", "none", "required"):
        choice = ToolChoice(value)
    elif isinstance(value, dict) and value.get("type") == "allowed_tools":
        choice = _parse_allowed(value)
    else:
        choice = ToolChoice("named", (_parse_name(value, "tool_choice"),))
    if choice.must_call and not names:
        raise _invalid("tool_choice", f"is {_shown(value)}, but the request has no tools")
    for name in choice.names:
        if name not in names:
            raise _invalid(
                "tool_choice", f"names {_shown(name)}, but the tools are {', '.join(names)}"
            )
    return choice


def parse_tools(
    tools: object, choice: ToolChoice, checker: GrammarChecker
) -> tuple[CallableTool, ...]:
    """Return the tools that may be called, out of those of a request that was checked.

    Raises InvalidRequest for a schema that cannot be used, if replies are held to it: of a strict
    tool, or of one that may have to be called.
    """
    if choice.mode == "none" or not isinstance(tools, list):
        return ()
    callable_tools = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        if not choice.allows(function["name"]):
            continue
        is_exact = function.get("strict") is True
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        if is_exact or choice.must_call:
            where = f"tools[{index}].function.parameters"
            schema = prepare_schema(schema, where, checker, is_exact=is_exact)
        callable_tools.append(CallableTool(function["name"], schema, is_exact or choice.must_call))
    return tuple(callable_tools)


# --- the grammar -------------------------------------------------------------------------


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
    wish = ReplyWish(
        reply_format=reply_format,
        reasoning=reasoning,
        tools=rules.tools,
        must_call=rules.choice.must_call,
        takes_words=rules.choice.mode == "required",
        takes_several=rules.takes_several,
        is_narrowed=bool(rules.choice.names),
        schema=rules.schema,
    )
    grammar = write_reply_grammar(wish, specials)
    fault = checker.find_fault(grammar) if grammar else ""
    if not fault:
        return grammar
    if rules.must_hold:
        raise InvalidRequest(f"the reply cannot be held to the request: {fault}")
    return ""


def make_value_constraint(schema: Schema, checker: GrammarChecker) -> str:
    """Return the grammar of a text that is nothing but a value of a schema."""
    wish = ReplyWish(reply_format=ReplyFormat(), reasoning="none", schema=schema)
    grammar = write_reply_grammar(wish, SpecialTokens())
    if fault := checker.find_fault(grammar):
        raise InvalidRequest(f"the text cannot be held to the schema: {fault}")
    return grammar


def _parse_allowed(value: Mapping[str, Any]) -> ToolChoice:
    allowed = value.get("allowed_tools", value)
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list) or not tools:
        raise _invalid("tool_choice.allowed_tools.tools", "must be a list of tools")
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _invalid("tool_choice.allowed_tools.mode", f"must be auto or required, not {mode!r}")
    where = "tool_choice.allowed_tools.tools[{}]"
    return ToolChoice(
        mode, tuple(_parse_name(tool, where.format(i)) for i, tool in enumerate(tools))
    )


def _parse_name(value: object, where: str) -> str:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _invalid(
            where,
            'must be "auto", "none", "required" or '
            f'{{"type": "function", "function": {{"name": …}}}}, but is {_shown(value)}',
        )
    return name


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)

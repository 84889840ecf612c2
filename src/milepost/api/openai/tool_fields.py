"""Reads `tool_choice` and the schemas of `tools`: which calls a reply may or must make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milepost.api.fields import quote
from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.replies.reply_rules import ToolChoice
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest


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
        raise _invalid("tool_choice", f"is {quote(value)}, but the request has no tools")
    for name in choice.names:
        if name not in names:
            raise _invalid(
                "tool_choice", f"names {quote(name)}, but the tools are {', '.join(names)}"
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
            f'{{"type": "function", "function": {{"name": …}}}}, but is {quote(value)}',
        )
    return name


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)

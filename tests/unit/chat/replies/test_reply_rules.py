"""What replies are held to, and the place of what is wrong with a schema."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.chat import reply_samples as samples

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.reply_plan import (
    ReplyRules,
    ToolChoice,
    make_constraint,
    make_value_constraint,
)
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def callable_tool(name: str) -> CallableTool:
    return CallableTool(name, {"type": "object", "properties": {}}, False)


def test_a_schema_may_hold_what_is_not_known_unless_it_is_strict() -> None:
    odd = {"type": "string", "format": "color", "not": {"const": ""}}
    assert prepare_schema(odd, "s", GrammarChecker(), is_exact=False)["type"] == "string"
    with pytest.raises(InvalidRequest, match="s cannot be used: Unimplemented keys"):
        prepare_schema(odd, "s", GrammarChecker(), is_exact=True)


@pytest.mark.parametrize("depth", [100, 5000])
def test_a_schema_that_is_too_deep_is_refused(depth: int) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidRequest, match="nested more than 64 levels deep"):
        prepare_schema(schema, "s", GrammarChecker(), is_exact=False)


@pytest.mark.parametrize(("num_before", "place"), [(60, ".properties.bad"), (64, "")])
def test_the_place_in_a_schema_is_looked_for_in_64_parts(num_before: int, place: str) -> None:
    parts = {f"p{i}": {"type": "integer"} for i in range(num_before)}
    schema = {"type": "object", "properties": {**parts, "bad": {"type": "strin"}}}
    with pytest.raises(InvalidRequest) as caught:
        prepare_schema(schema, "s", GrammarChecker(), is_exact=True)
    assert caught.value.param == f"s{place}"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": ["x" * (1 << 20)]}, "has more than 1048576 bytes as JSON"),
        ({"properties": {f"p{i}": {"type": "string"} for i in range(4000)}}, "too big"),
    ],
)
def test_a_schema_that_is_too_large_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_value_constraint(
            prepare_schema(schema, "s", GrammarChecker(), is_exact=False), GrammarChecker()
        )


def test_what_is_asked_of_calls_must_be_held_where_there_are_tools() -> None:
    tools = [callable_tool("a")]
    some = ToolChoice("auto", ("a",))
    assert not ReplyRules(tools=tools).must_hold
    assert not ReplyRules(takes_several=False).must_hold
    assert ReplyRules(tools=tools, takes_several=False).must_hold
    assert ReplyRules(tools=tools, choice=some).must_hold


def test_a_call_cannot_be_forced_where_the_format_of_calls_is_unknown() -> None:
    tools = [callable_tool("a")]
    rules = ReplyRules(tools=tools, choice=ToolChoice("required"))
    with pytest.raises(InvalidRequest, match="use a template with tools"):
        make_constraint(rules, ReplyFormat(), "none", SpecialTokens(), GrammarChecker())


def test_the_same_request_has_the_same_grammar() -> None:
    checker = GrammarChecker()
    tools = [CallableTool(f"t{i}", SCHEMA, True) for i in range(40)]
    rules = ReplyRules(tools=tools)
    first = make_constraint(rules, samples.QWEN3, "possible", SpecialTokens(), checker)
    assert checker.find_fault(first) == ""
    assert first == make_constraint(rules, samples.QWEN3, "possible", SpecialTokens(), checker)

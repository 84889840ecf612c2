"""What requests ask of replies, and the place of what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.chat import reply_samples as samples

from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.reply_rules import (
    ReplyRules,
    ToolChoice,
    make_constraint,
    make_value_constraint,
    parse_response_format,
    parse_tool_choice,
    parse_tools,
)
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    ],
)
def test_every_dialect_has_its_place_for_a_schema(value: dict[str, Any]) -> None:
    schema = parse_response_format(value, GrammarChecker())
    assert schema is not None
    assert schema["properties"] == SCHEMA["properties"]


def test_text_has_no_schema_and_an_object_any() -> None:
    assert parse_response_format(None, GrammarChecker()) is None
    assert parse_response_format({"type": "text"}, GrammarChecker()) is None
    assert parse_response_format({"type": "json_object"}, GrammarChecker()) == {"type": "object"}


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        ("json", "response_format", "must be an object with the type"),
        ({"type": "xml"}, "response_format", "must be an object with the type"),
        ({"type": "json_schema"}, "response_format.schema", "is missing"),
        (
            {"type": "json_schema", "json_schema": {"schema": 3}},
            "response_format.json_schema.schema",
            "must be a JSON schema, an object, not 3",
        ),
        (
            {"type": "json_object", "schema": {"properties": {"a": {"type": "strin"}}}},
            "response_format.schema.properties.a",
            "Invalid type: strin",
        ),
        (
            {
                "type": "json_schema",
                "json_schema": {
                    "strict": True,
                    "schema": {"$defs": {"x": {"not": {}}}, "items": {"$ref": "#/$defs/x"}},
                },
            },
            "response_format.json_schema.schema.$defs.x",
            'Unimplemented keys: ["not"]',
        ),
        (
            {
                "type": "json_object",
                "schema": {
                    "type": "object",
                    "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}},
                    "required": ["a"],
                },
            },
            "response_format.schema.properties.a",
            "minLength (3) is greater than maxLength (2)",
        ),
    ],
)
def test_a_bad_response_format_is_refused_with_its_place(
    value: object, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_response_format(value, GrammarChecker())
    assert message in str(caught.value)
    assert caught.value.param == param


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


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "b"}}, ToolChoice("named", ("b",))),
        ({"type": "function", "name": "b"}, ToolChoice("named", ("b",))),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "a"}}],
                },
            },
            ToolChoice("required", ("a",)),
        ),
    ],
)
def test_a_tool_choice_is_read(value: object, choice: ToolChoice) -> None:
    assert parse_tool_choice(value, ["a", "b"]) == choice


@pytest.mark.parametrize(
    ("value", "names", "message"),
    [
        ("required", [], 'is "required", but the request has no tools'),
        ("sometimes", ["a"], 'must be "auto", "none", "required" or'),
        (3, ["a"], 'must be "auto", "none", "required" or'),
        ({"type": "function"}, ["a"], 'must be "auto", "none", "required" or'),
        ({"function": {"name": "c"}}, ["a", "b"], 'names "c", but the tools are a, b'),
        ({"type": "allowed_tools"}, ["a"], "must be a list of tools"),
    ],
)
def test_a_bad_tool_choice_is_refused(value: object, names: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match="tool_choice") as caught:
        parse_tool_choice(value, names)
    assert message in str(caught.value)


def test_only_tools_that_replies_are_held_to_need_a_good_schema() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = [tool("good"), tool("bad", parameters=bad)]
    assert [each.is_strict for each in parse_tools(tools, ToolChoice(), GrammarChecker())] == [
        False,
        False,
    ]
    assert len(parse_tools(tools, ToolChoice("named", ("good",)), GrammarChecker())) == 1
    assert parse_tools(tools, ToolChoice("none"), GrammarChecker()) == ()
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(tools, ToolChoice("required"), GrammarChecker())
    assert caught.value.param == "tools[1].function.parameters.properties.a"
    tools[1]["function"]["strict"] = True
    with pytest.raises(InvalidRequest, match="Invalid type: strin"):
        parse_tools(tools, ToolChoice(), GrammarChecker())


def test_what_is_asked_of_calls_must_be_held_where_there_are_tools() -> None:
    tools = parse_tools([tool("a")], ToolChoice(), GrammarChecker())
    some = ToolChoice("auto", ("a",))
    assert not ReplyRules(tools=tools).must_hold
    assert not ReplyRules(takes_several=False).must_hold
    assert ReplyRules(tools=tools, takes_several=False).must_hold
    assert ReplyRules(tools=tools, choice=some).must_hold


def test_a_call_cannot_be_forced_where_the_format_of_calls_is_unknown() -> None:
    tools = parse_tools([tool("a")], ToolChoice("required"), GrammarChecker())
    rules = ReplyRules(tools=tools, choice=ToolChoice("required"))
    with pytest.raises(InvalidRequest, match="use a template with tools"):
        make_constraint(rules, ReplyFormat(), "none", SpecialTokens(), GrammarChecker())


def test_the_same_request_has_the_same_grammar() -> None:
    checker = GrammarChecker()
    tools = parse_tools(
        [tool(f"t{i}", parameters=SCHEMA, strict=True) for i in range(40)],
        ToolChoice(),
        GrammarChecker(),
    )
    rules = ReplyRules(tools=tools)
    first = make_constraint(rules, samples.QWEN3, "possible", SpecialTokens(), checker)
    assert checker.find_fault(first) == ""
    assert first == make_constraint(rules, samples.QWEN3, "possible", SpecialTokens(), checker)

"""What requests ask of replies, and the place of what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.api.generation_fields import parse_response_format
from milepost.api.openai.chat_request import parse_tool_choice, parse_tools
from milepost.chat.replies.reply_plan import ToolChoice
from milepost.chat.replies.schema_check import GrammarChecker
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

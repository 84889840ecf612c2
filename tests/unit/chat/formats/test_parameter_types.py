"""Raw text of arguments to JSON, by the schema of a tool."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.chat.formats.parameter_types import permitted_types, to_json


def types(*names: str) -> frozenset[str]:
    return frozenset(names)


@pytest.mark.parametrize(
    ("raw", "permitted", "json_text"),
    [
        ("1", types("string"), '"1"'),
        ("1", types("integer"), "1"),
        (" 1.50\n", types("number"), "1.50"),
        ("1", types("string", "number"), "1"),
        ("null", types("string", "null"), "null"),
        ("nil", types("string", "null"), '"nil"'),
        ("[1]", types("string"), '"[1]"'),
        ("[1]", types("array"), "[1]"),
        ("{'a': [True, None], \"b\": '\\d'}", types("object"), '{"a": [true, null], "b": "\\\\d"}'),
        ("{'a': 1", types("object"), "\"{'a': 1\""),
        ("True", types("boolean"), "true"),
        ("yes", types("boolean"), '"yes"'),
        ("true", types(), "true"),
        ("two words", types(), '"two words"'),
        ("NaN", types("number"), '"NaN"'),
        ("[" * 9999, types("array"), f'"{"[" * 9999}"'),
        ("9" * 5000, types("integer"), f'"{"9" * 5000}"'),
        ('"quoted"', types(), '"\\"quoted\\""'),
    ],
)
def test_raw_text_is_json_where_the_schema_permits_it(
    raw: str, permitted: frozenset[str], json_text: str
) -> None:
    assert to_json(raw, permitted) == json_text


@pytest.mark.parametrize(
    ("schema", "permitted"),
    [
        ({"type": "string"}, types("string")),
        ({"type": ["string", "null"]}, types("string", "null")),
        ({"enum": ["a", 1]}, types("string", "integer")),
        ({"const": None}, types("null")),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, types("string", "null")),
        ({"anyOf": [{"type": "string"}, {}]}, types()),
        ({"allOf": [{"description": "x"}, {"type": "array"}]}, types("array")),
        ({"$ref": "#/$defs/word"}, types("string")),
        ({"$ref": "#/$defs/loop"}, types()),
        ({"$ref": "https://example.org/word"}, types()),
        ({"type": 5}, types()),
        (None, types()),
    ],
)
def test_types_of_a_schema(schema: Any, permitted: frozenset[str]) -> None:
    definitions = {"word": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": definitions}

    assert permitted_types(parameters, "a") == permitted


@pytest.mark.parametrize("parameters", [None, [], {}, {"properties": []}, {"properties": {}}])
def test_no_schema_permits_anything(parameters: Any) -> None:
    assert permitted_types(parameters, "a") == types()

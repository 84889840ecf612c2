"""What schemas say, with references and alternatives followed."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.chat.formats.schema_resolver import Schemas

NUMBER = {"type": "integer"}
ROOT: dict[str, Any] = {
    "$id": "https://example.org/s",
    "type": "object",
    "properties": {"a": NUMBER, "b/c": {"type": "string"}, "e": {"$ref": "#/$defs/in/$defs/n"}},
    "$defs": {
        "n": NUMBER,
        "in": {"$defs": {"n": NUMBER}},
        "loop": {"$ref": "#/$defs/loop"},
        "list": [NUMBER],
        "with space": NUMBER,
        "self": {"type": "string", "anyOf": [{"$ref": "#/$defs/self"}, {"maxLength": 3}]},
    },
    "additionalProperties": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("#/$defs/n", NUMBER),
        ("#/$defs/in/$defs/n", NUMBER),
        ("#/properties/a", NUMBER),
        ("#/properties/b~1c", {"type": "string"}),
        ("#/$defs/list/0", NUMBER),
        ("#/$defs/with%20space", NUMBER),
        ("https://example.org/s#/$defs/n", NUMBER),
        ("#/$defs/none", None),
        ("#/$defs/list/1", None),
        ("https://example.org/other", None),
        ("n", None),
    ],
)
def test_a_reference_leads_anywhere_in_the_document(reference: str, found: object) -> None:
    assert Schemas(ROOT).follow(reference) == found


@pytest.mark.parametrize(
    ("part", "resolved"),
    [
        ({"$ref": "#/$defs/n"}, NUMBER),
        ({"$ref": "#/$defs/n", "maximum": 3}, {**NUMBER, "maximum": 3}),
        (
            {"allOf": [{"$ref": "#/$defs/n"}, {"maximum": 3}], "maximum": 2},
            {**NUMBER, "maximum": 2},
        ),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "number"}]}, {"type": ["integer"]}),
        ({"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, {"enum": [2]}),
        (
            {"allOf": [{"required": ["a"]}, {"required": ["b", "a"]}]},
            {"required": ["a", "b"]},
        ),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": NUMBER}}]},
            {"properties": {"a": {}, "b": NUMBER}},
        ),
        ({"$ref": "#/$defs/loop"}, {}),
        ({"$ref": "#/$defs/none"}, {}),
        (True, {}),
        (False, {"enum": []}),
        (None, {}),
    ],
)
def test_what_a_schema_refers_to_is_merged(part: Any, resolved: dict[str, Any]) -> None:
    assert Schemas(ROOT).resolve(part) == resolved


def test_alternatives_are_merged_with_what_stands_beside_them() -> None:
    part = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert Schemas(ROOT).alternatives(part) == [
        {"type": "object", "required": ["a"]},
        {"type": "object", "required": ["b"]},
    ]


def test_an_alternative_that_leads_back_adds_nothing() -> None:
    found = Schemas(ROOT).alternatives({"$ref": "#/$defs/self"})
    assert found == [{"type": "string", "maxLength": 3}]


def test_alternatives_of_texts_are_one_list() -> None:
    part = {"oneOf": [{"const": f"i{i}", "title": f"{i}"} for i in range(1500)] + [NUMBER]}
    found = Schemas(ROOT).alternatives(part)
    assert found == [{"enum": [f"i{i}" for i in range(1500)]}, NUMBER]
    assert Schemas(ROOT).types(part) == {"string", "integer"}


@pytest.mark.parametrize(
    ("name", "types"), [("a", {"integer"}), ("e", {"integer"}), ("other", {"boolean"})]
)
def test_types_of_arguments(name: str, types: set[str]) -> None:
    assert Schemas(ROOT).argument_types(name) == types


@pytest.mark.parametrize(
    "odd",
    [
        {"properties": 5, "required": 7, "anyOf": [3, None, "x"]},
        {"allOf": [{"minimum": "a"}, {"minimum": 3}], "type": {}},
        {"$ref": 5, "enum": "abc"},
        {"allOf": 5, "oneOf": {}},
    ],
)
def test_what_is_no_schema_permits_anything(odd: Any) -> None:
    assert Schemas(odd).argument_types("a") == frozenset()

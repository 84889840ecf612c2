"""Which JSON types the schema of a tool permits for an argument that is written as raw text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from milepost.chat.formats.call_schemas import follow_reference
from milepost.chat.formats.json_text import quote
from milepost.chat.formats.python_literals import literal_to_json

ANY: frozenset[str] = frozenset()  # nothing is known
MAX_SCHEMA_DEPTH = 8  # of references and alternatives; arbitrary
JSON_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
CONTAINERS = frozenset(["array", "object"])
WORDS = {"True": "true", "False": "false", "None": "null"}


def permitted_types(parameters: object, key: str) -> frozenset[str]:
    """Return the types of one argument, from the schema of all; `ANY` where it does not say."""
    if not isinstance(parameters, Mapping):
        return ANY
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return ANY
    return _types_of(properties.get(key), parameters, MAX_SCHEMA_DEPTH)


def to_json(raw: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value that is written as raw text.

    It is a string where the schema permits nothing else, or where it is no JSON of another type;
    lists and objects may be written as Python does, as some templates show them (Seed-OSS).
    """
    text = WORDS.get(raw.strip(), raw.strip())
    if types & CONTAINERS and "string" not in types:
        text = _mend_literal(text)
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return quote(raw)
    kind = JSON_TYPES[type(value)]
    if not types:
        fits = kind != "string"
    else:
        fits = kind in types or (kind == "integer" and "number" in types) or "string" not in types
    return text if fits else quote(raw)


def _types_of(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return ANY
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset([kind])
    if isinstance(kind, list):
        return frozenset(item for item in kind if isinstance(item, str))
    if isinstance(values := schema.get("enum"), list):
        return frozenset(JSON_TYPES.get(type(value), "object") for value in values)
    if "const" in schema:
        return frozenset([JSON_TYPES.get(type(schema["const"]), "object")])
    if isinstance(reference := schema.get("$ref"), str):
        return _types_of(follow_reference(reference, root), root, depth - 1)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return _types_of_any(schema[name], root, depth)
    if isinstance(parts := schema.get("allOf"), list):
        found = (_types_of(part, root, depth - 1) for part in parts)
        return next((types for types in found if types), ANY)
    return ANY


def _types_of_any(alternatives: list[Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    found = [_types_of(alternative, root, depth - 1) for alternative in alternatives]
    return frozenset().union(*found) if all(found) else ANY


def _mend_literal(text: str) -> str:
    """Return a list or an object as JSON where it is written as Python does, else the text."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return literal_to_json(text)
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")

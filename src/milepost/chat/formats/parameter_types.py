"""Which JSON types the schema of a tool permits for an argument that is written as raw text."""

from __future__ import annotations

import json

from milepost.chat.formats.json_text import quote
from milepost.chat.formats.python_literals import literal_to_json
from milepost.chat.formats.schema_resolver import JSON_TYPES, Schemas

CONTAINERS = frozenset(["array", "object"])
WORDS = {"True": "true", "False": "false", "None": "null"}


def permitted_types(parameters: object, key: str) -> frozenset[str]:
    """Return the types of one argument, from the schema of all; `ANY` where it does not say."""
    return Schemas(parameters).argument_types(key)


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


def _mend_literal(text: str) -> str:
    """Return a list or an object as JSON where it is written as Python does, else the text."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return literal_to_json(text)
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")

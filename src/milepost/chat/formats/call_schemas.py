"""The tools of a request as grammars see them: names, and JSON schemas of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.grammar_writer import Schema
from milepost.errors import InvalidRequest

DEFINITIONS: tuple[str, ...] = ("$defs", "definitions")
# Of an object whose members are written one by one. llguidance overflows its stack, which ends the
# process, at chains of rules that several thousand make; they may nest in objects.
MAX_PROPERTIES = 128
MAX_REF_DEPTH = 8  # of references to references; arbitrary


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that a reply may call."""

    name: str
    schema: Schema  # of its arguments, an object
    # Whether arguments follow the schema to the letter, its order of properties included. Without
    # it they are only sure to be an object: a fixed order would keep models from what they mean.
    is_strict: bool


@dataclass(frozen=True, slots=True)
class Property:
    """One argument of a tool."""

    name: str
    schema: Schema | bool
    is_required: bool


def properties_of(schema: Schema) -> list[Property]:
    """Return the arguments that a schema names, in its order.

    Raises InvalidRequest for more than can be written into a grammar one by one.
    """
    parts = _named_parts(schema)
    if len(parts) > MAX_PROPERTIES:
        raise InvalidRequest(
            f"the parameters of a tool have {len(parts)} properties in one object; a call that "
            f"must follow them may have {MAX_PROPERTIES} in the format of this model: send fewer, "
            "or do without 'strict' and a 'tool_choice' that asks for calls",
            param="tools",
        )
    return [
        Property(name, part if isinstance(part, dict | bool) else {}, is_required)
        for name, part, is_required in parts
    ]


def takes_others(schema: Schema) -> bool:
    """Return whether a schema asks for arguments that it does not name."""
    extra = schema.get("additionalProperties", not _named_parts(schema))
    return extra is not False


def takes_any(schema: Schema) -> bool:
    """Return whether a schema asks for arguments at all."""
    return bool(_named_parts(schema)) or takes_others(schema)


def as_root(part: Schema | bool, root: Schema) -> Schema:
    """Return a part of a schema so that it can stand alone: with what it may refer to."""
    if isinstance(part, bool):
        return {} if part else {"enum": []}
    keys = ["x-guidance", *(DEFINITIONS if '"$ref"' in json.dumps(part) else ())]
    return {**{key: root[key] for key in keys if key in root}, **part}


def resolve(part: Schema | bool, root: Schema) -> Schema:
    """Return what a schema refers to, if it is nothing but a reference into `root`."""
    found: object = part
    for _ in range(MAX_REF_DEPTH):
        if not isinstance(found, dict) or not isinstance(found.get("$ref"), str):
            break
        found = follow_reference(found["$ref"], root)
    return found if isinstance(found, dict) else {}


def follow_reference(reference: str, root: Mapping[str, Any]) -> object:
    """Return what a reference within a schema refers to; None for others, or if it is not there."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference.split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def may_be_string(part: Schema | bool, root: Schema) -> bool:
    """Return whether a string can be a value of a schema, as far as its types tell."""
    waiting: list[Schema | bool] = [part]
    seen: set[int] = set()  # alternatives may refer to what they are alternatives of
    while waiting:
        schema = resolve(waiting.pop(), root)
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        if _is_for_string(schema):
            return True
        waiting += _alternatives(schema)
    return False


def constants_of(schema: Schema) -> list[Any] | None:
    """Return the only values of a schema, None when it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _named_parts(schema: Schema) -> list[tuple[str, Any, bool]]:
    """Return the properties that a schema names: name, schema, whether it is required."""
    named = schema.get("properties")
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    named = named if isinstance(named, dict) else {}
    wanted = {name for name in required if isinstance(name, str)}
    parts = [(name, part, name in wanted) for name, part in named.items()]
    unnamed = [name for name in required if isinstance(name, str) and name not in named]
    return [*parts, *((name, True, True) for name in unnamed)]


def _is_for_string(schema: Schema) -> bool:
    """Return whether a schema takes strings, whatever its alternatives take."""
    if "const" in schema or isinstance(schema.get("enum"), list):
        return any(isinstance(value, str) for value in constants_of(schema) or ())
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return "string" in kinds
    return not {"properties", "items"} & schema.keys() and _find_list(schema) is None


def _alternatives(schema: Schema) -> list[Schema | bool]:
    """Return the schemas of which a value follows one, where they decide about its type."""
    if {"const", "type"} & schema.keys() or isinstance(schema.get("enum"), list):
        return []
    return _find_list(schema) or []


def _find_list(schema: Schema) -> list[Schema | bool] | None:
    lists = (schema.get(key) for key in ("anyOf", "oneOf"))
    return next((found for found in lists if isinstance(found, list)), None)

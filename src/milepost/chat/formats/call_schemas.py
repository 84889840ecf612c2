"""The tools of a request as grammars see them: names, and JSON schemas of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.grammar_writer import Schema
from milepost.errors import InvalidRequest

# Of an object whose members are written one by one. llguidance overflows its stack, which ends the
# process, at chains of rules that several thousand make; they may nest in objects.
MAX_PROPERTIES = 128
REFERENCE_KEYS = ("$id", "$schema", "x-guidance")  # that count at the root of a document only


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that a reply may call."""

    name: str
    schema: Schema  # of its arguments, an object
    # Whether arguments follow the schema. Without it they are only sure to be an object: a fixed
    # order would keep models from what they mean.
    is_strict: bool
    keeps_order: bool = True  # of properties as in the schema; else they may be sorted, too
    place: str = "tools"  # in the request


@dataclass(frozen=True, slots=True)
class Property:
    """One argument of a tool."""

    name: str
    schema: Schema | bool
    is_required: bool


def properties_of(schema: Schema) -> list[Property]:
    """Return the properties that a resolved schema names, in its order.

    Raises InvalidRequest for more than can be written into a grammar one by one.
    """
    parts = named_properties(schema)
    if len(parts) > MAX_PROPERTIES:
        raise InvalidRequest(
            f"the parameters of a tool have {len(parts)} properties in one object; a call that "
            f"must follow them may have {MAX_PROPERTIES} in the format of this model: send fewer, "
            "or do without 'strict' and a 'tool_choice' that asks for calls",
            param="tools",
        )
    return parts


def named_properties(schema: Schema) -> list[Property]:
    """Return the properties that a resolved schema names, however many."""
    named = schema.get("properties")
    required = schema.get("required")
    listed = required if isinstance(required, list) else []
    names = [name for name in listed if isinstance(name, str)]
    named = named if isinstance(named, dict) else {}
    wanted = set(names)
    parts = [(name, part, name in wanted) for name, part in named.items()]
    parts += [(name, True, True) for name in dict.fromkeys(names) if name not in named]
    return [
        Property(name, part if isinstance(part, dict | bool) else {}, is_required)
        for name, part, is_required in parts
    ]


def orders_of(properties: list[Property], *, keeps_order: bool) -> list[list[Property]]:
    """Return the orders in which properties may stand: theirs, and the sorted one."""
    in_order = sorted(properties, key=lambda one: one.name)
    return [properties] if keeps_order or in_order == properties else [properties, in_order]


def takes_others(schema: Schema) -> bool:
    """Return whether a schema asks for arguments that it does not name."""
    extra = schema.get("additionalProperties", not named_properties(schema))
    return extra is not False


def as_root(part: Schema | bool, root: Mapping[str, Any]) -> Schema:
    """Return a part of a schema so that it can stand alone: with what it may refer to."""
    if isinstance(part, bool):
        return {} if part else {"enum": []}
    options = {key: root[key] for key in ("x-guidance",) if key in root}
    if '"$ref"' not in json.dumps(part):
        return {**options, **part}
    base = str(root.get("$id") or "").removesuffix("#")
    document = {key: value for key, value in root.items() if key not in REFERENCE_KEYS}
    moved: Schema = _move_references(part, base)
    return {**options, **moved, "$defs": {"root": _move_references(document, base)}}


def _move_references(value: Any, base: str) -> Any:
    """Return a part of a schema for a document in which its own one is `#/$defs/root`."""
    if isinstance(value, list):
        return [_move_references(one, base) for one in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _move_references(one, base) for key, one in value.items()}
    if isinstance(reference := value.get("$ref"), str):
        reference = reference.removeprefix(base)
        if reference in ("", "#") or reference.startswith("#/"):
            moved["$ref"] = "#/$defs/root" + reference.removeprefix("#")
    return moved

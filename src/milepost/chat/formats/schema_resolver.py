"""What the schemas of one document say, with what they refer to: for grammars, readers and checks.

A reference may lead to definitions, to properties, or to the root. `allOf`, and keywords that stand
beside a reference, are merged into one schema; of `anyOf` and `oneOf` each alternative is.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from milepost.chat.formats.grammar_writer import Schema

ANY: frozenset[str] = frozenset()  # types of a schema that does not say any
NEVER: Schema = {"enum": []}
MAX_ALTERNATIVES = 256  # of two lists of which a value follows both; arbitrary
MAX_EXPANDED = 256  # lists of alternatives in one another; arbitrary
JSON_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
CHOICES = ("anyOf", "oneOf")
NO_CONSTRAINTS = frozenset(
    ["title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$id"]
    + ["$defs", "definitions", "x-guidance", "readOnly", "writeOnly", "nullable"]
)
LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class Schemas:
    """The schemas of one document. The same part has the same object as its answer each time."""

    def __init__(self, root: object) -> None:
        """Resolve references into `root`; anything that is no schema permits anything."""
        self.root: Mapping[str, Any] = root if isinstance(root, Mapping) else {}
        # By the id of a part, which is kept for that.
        self._resolved: dict[int, tuple[object, Schema]] = {}
        self._alternatives: dict[int, tuple[object, list[Schema]]] = {}

    def resolve(self, part: object) -> Schema:
        """Return a schema without references and `allOf` that says the same."""
        known = self._resolved.get(id(part))
        if known is None:
            known = self._resolved[id(part)] = (part, self._resolve(part))
        return known[1]

    def alternatives(self, part: object) -> list[Schema]:
        """Return schemas, as of `resolve` and without alternatives, of which a value follows one.

        An alternative that leads back to its own schema is left out: it adds nothing.
        """
        known = self._alternatives.get(id(part))
        if known is None:
            known = self._alternatives[id(part)] = (part, self._find_alternatives(part))
        return known[1]

    def types(self, part: object) -> frozenset[str]:
        """Return the JSON types that a schema permits; `ANY` where it does not say."""
        found = [_types_of(schema) for schema in self.alternatives(part)]
        return frozenset().union(*found) if found and all(found) else ANY

    def argument_types(self, name: str) -> frozenset[str]:
        """Return the types of a property of the root; `ANY` where nothing is said of it."""
        found = []
        for schema in self.alternatives(self.root):
            named = schema.get("properties")
            part = named.get(name) if isinstance(named, Mapping) else None
            if part is None:
                part = schema.get("additionalProperties")
            found.append(self.types(part) if isinstance(part, Mapping) else ANY)
        return frozenset().union(*found) if found and all(found) else ANY

    def follow(self, reference: str) -> object:
        """Return what a reference leads to; None for another document, or where nothing is."""
        base = self.root.get("$id")
        if isinstance(base, str):
            reference = reference.removeprefix(base.removesuffix("#"))
        if reference not in ("", "#") and not reference.startswith("#/"):
            return None
        found: object = self.root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(step)
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found

    def _resolve(self, part: object) -> Schema:
        if isinstance(part, bool):
            return {} if part else NEVER
        if isinstance(part, dict) and "$ref" not in part and "allOf" not in part:
            return part
        merged: Schema = {}
        for piece in self._pieces(part):
            merged = merge(merged, piece)
        return merged

    def _pieces(self, part: object) -> Iterator[Schema]:
        """Yield the schemas that must all hold, each without references and `allOf`."""
        waiting, seen = [part], set()
        while waiting:
            one = waiting.pop(0)
            if one is False:
                yield NEVER
            if not isinstance(one, Mapping) or id(one) in seen:
                continue
            seen.add(id(one))
            yield {key: value for key, value in one.items() if key not in ("$ref", "allOf")}
            if isinstance(reference := one.get("$ref"), str):
                waiting.append(self.follow(reference))
            if isinstance(parts := one.get("allOf"), list):
                waiting += parts

    def _find_alternatives(self, part: object) -> list[Schema]:
        found: list[Schema] = []
        waiting = deque([part])
        seen: set[int] = set()
        expanded: set[tuple[int, str]] = set()  # alternatives, and what stands beside them
        while waiting:
            schema = self.resolve(waiting.popleft())
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            key = next((key for key in CHOICES if _is_filled(schema.get(key))), None)
            if key is None:
                found.append(schema)
                continue
            base = {name: value for name, value in schema.items() if name != key}
            beside = (id(schema[key]), json.dumps(base, sort_keys=True))
            if beside in expanded:
                continue
            expanded.add(beside)
            if len(expanded) > MAX_EXPANDED:
                return [{}]  # alternatives that grow for ever
            is_free = base.keys() <= NO_CONSTRAINTS
            waiting += [one if is_free else {"allOf": [base, one]} for one in schema[key]]
        return _join_constants(found) or [{}]


def merge(one: Schema, other: Schema) -> Schema:
    """Return a schema of the values that follow both."""
    if not one.keys() - NO_CONSTRAINTS:
        return {**one, **other}
    merged = {**other, **one}
    for key in one.keys() & other.keys():
        if one[key] != other[key]:
            merged[key] = _merge_values(key, one[key], other[key])
    one_constants, other_constants = constants_of(one), constants_of(other)
    if one_constants is not None and other_constants is not None:
        merged.pop("const", None)
        merged["enum"] = [value for value in one_constants if value in other_constants]
    return merged


def constants_of(schema: Schema) -> list[Any] | None:
    """Return the only values of a schema, None when it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _merge_values(key: str, one: Any, other: Any) -> Any:
    if key == "properties" and isinstance(one, dict) and isinstance(other, dict):
        both = {name: {"allOf": [one[name], other[name]]} for name in one if name in other}
        return {**one, **other, **both}
    if key == "required" and isinstance(one, list) and isinstance(other, list):
        return [*one, *(name for name in other if name not in one)]
    if key == "type":
        return _merge_types(one, other)
    if key in CHOICES and isinstance(one, list) and isinstance(other, list):
        return [{"allOf": [first, second]} for first in one for second in other][:MAX_ALTERNATIVES]
    are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if key in (*LOWER_BOUNDS, *UPPER_BOUNDS) and are_numbers:
        return max(one, other) if key in LOWER_BOUNDS else min(one, other)
    if key in ("items", "additionalProperties"):
        return {"allOf": [one, other]} if False not in (one, other) else False
    return one


def _merge_types(one: Any, other: Any) -> list[str]:
    kinds, others = (value if isinstance(value, list) else [value] for value in (one, other))
    both = [kind for kind in kinds if kind in others]
    if "integer" not in both and ("integer" in kinds or "integer" in others):
        both += ["integer"] if "number" in kinds or "number" in others else []
    return both


def _types_of(schema: Schema) -> frozenset[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset([kinds])
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    constants = constants_of(schema)
    if constants is not None:
        return frozenset(JSON_TYPES.get(type(value), "object") for value in constants)
    implied = {"properties": "object", "items": "array", "prefixItems": "array"}
    return frozenset(kind for key, kind in implied.items() if key in schema)


def _join_constants(schemas: list[Schema]) -> list[Schema]:
    """Return schemas with all that list nothing but texts as one."""
    texts: list[str] = []
    others: list[Schema] = []
    for schema in schemas:
        constants = constants_of(schema)
        if constants and all(isinstance(value, str) for value in constants):
            takes_texts = "string" in _types_of(schema)
            texts += constants if takes_texts else []
        else:
            others.append(schema)
    if len(schemas) - len(others) < 2:
        return schemas
    return [{"enum": list(dict.fromkeys(texts))}, *others]


def _is_filled(value: object) -> bool:
    return isinstance(value, list) and bool(value)

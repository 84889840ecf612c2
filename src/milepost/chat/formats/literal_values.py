"""Values as some models write them instead of JSON: Python's literals, or Gemma's braces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.call_schemas import constants_of, properties_of, resolve, takes_others
from milepost.chat.formats.grammar_writer import GrammarWriter, Schema, choice, list_in_order, seq

MAX_DEPTH = 8  # of schemas that refer to themselves; deeper values may be anything
MAX_INLINE_CHARS = 200  # of an expression that is written wherever it is used; arbitrary
SIMPLE_KINDS = ("string", "boolean", "null", "integer", "number")


@dataclass(frozen=True, slots=True)
class LiteralDialect:
    """How values are written."""

    true: str
    false: str
    null: str
    write_any_string: Callable[[GrammarWriter], str]
    write_string: Callable[[str, GrammarWriter], str]  # one certain string
    write_any_key: Callable[[GrammarWriter], str]
    write_key: Callable[[str, GrammarWriter], str]


class LiteralWriter:
    """Writes the values of the schemas of one tool."""

    def __init__(self, dialect: LiteralDialect, root: Schema, writer: GrammarWriter) -> None:
        self._dialect = dialect
        self._root = root
        self._writer = writer
        # By the id of a schema, which is kept for that, and its depth. Schemas that refer to
        # themselves in several places are written once for each depth, not for each way there.
        self._written: dict[tuple[int, int], tuple[Schema, str]] = {}

    @property
    def comma(self) -> str:
        """What stands between two values."""
        return seq(self._writer.space, self._writer.plain(","), self._writer.space)

    def value(self, part: Schema | bool, depth: int = 0) -> str:
        """Return an expression for the values of a schema."""
        schema = resolve(part, self._root)
        if depth > MAX_DEPTH:
            return self.anything()
        known = self._written.get((id(schema), depth))
        if known is None:
            expression = self._write(schema, depth)
            if len(expression) > MAX_INLINE_CHARS:
                expression = self._writer.rule(expression)
            known = self._written[id(schema), depth] = (schema, expression)
        return known[1]

    def _write(self, schema: Schema, depth: int) -> str:
        constants = constants_of(schema)
        if constants:
            return choice(*map(self._constant, constants))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return choice(*(self.value(one, depth + 1) for one in schema[key]))
        kinds = schema.get("type", "object" if "properties" in schema else None)
        if kinds is None:
            return self.anything()
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return choice(*(self._of_kind(kind, schema, depth) for kind in kinds))

    def anything(self) -> str:
        """Return an expression for any value."""
        # A rule that stands in itself: its name must be known before it is written.
        return self._writer.recursive(
            "value",
            lambda name: choice(
                *(self._simple(kind) for kind in SIMPLE_KINDS if kind != "integer"),
                self._list(name),
                self._braces(self._writer.optional(self._repeat(self._any_member(name)))),
            ),
        )

    def _of_kind(self, kind: Any, schema: Schema, depth: int) -> str:
        if kind == "array":
            items = schema.get("items", True)
            return self._list(
                self.value(items, depth + 1) if isinstance(items, dict) else self.anything()
            )
        if kind == "object":
            return self._object(schema, depth)
        return self._simple(kind, schema)

    def _object(self, schema: Schema, depth: int) -> str:
        named = [
            (
                self._member(self._dialect.write_key(one.name, self._writer), one.schema, depth),
                one.is_required,
            )
            for one in properties_of(schema)
        ]
        if not named:
            others = takes_others(schema)
            members = self._repeat(self._any_member(self.anything())) if others else ""
            return self._braces(self._writer.optional(members))
        return self._braces(list_in_order(named, self.comma, self._writer))

    def _simple(self, kind: Any, schema: Schema | None = None) -> str:
        dialect, writer = self._dialect, self._writer
        if kind == "string":
            return dialect.write_any_string(writer)
        if kind == "boolean":
            return choice(writer.plain(dialect.true), writer.plain(dialect.false))
        if kind == "null":
            return writer.plain(dialect.null)
        return writer.json({**(schema or {}), "type": kind})

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return self._dialect.write_string(value, self._writer)
        words = {True: self._dialect.true, False: self._dialect.false, None: self._dialect.null}
        if isinstance(value, bool) or value is None:
            return self._writer.plain(words[value])
        return self._writer.plain(json.dumps(value))

    def _list(self, item: str) -> str:
        writer = self._writer
        items = writer.optional(self._repeat(item))
        return seq(writer.plain("["), writer.space, items, writer.space, writer.plain("]"))

    def _braces(self, members: str) -> str:
        writer = self._writer
        return seq(writer.plain("{"), writer.space, members, writer.space, writer.plain("}"))

    def _member(self, key: str, part: Schema | bool, depth: int) -> str:
        return self._pair(key, self.value(part, depth + 1))

    def _any_member(self, value: str) -> str:
        return self._pair(self._dialect.write_any_key(self._writer), value)

    def _pair(self, key: str, value: str) -> str:
        colon = seq(self._writer.space, self._writer.plain(":"), self._writer.space)
        return seq(key, colon, value)

    def _repeat(self, item: str) -> str:
        return seq(item, f"({seq(self.comma, item)})*")

"""The values of schemas, in JSON or as some models write them: Python's literals, Gemma's braces.

What a dialect is, is data; what schemas say is followed here, once for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.call_schemas import (
    MAX_PROPERTIES,
    Property,
    as_root,
    named_properties,
    orders_of,
    properties_of,
)
from milepost.chat.formats.grammar_writer import GrammarWriter, Schema, choice, list_in_order, seq
from milepost.chat.formats.schema_resolver import (
    JSON_TYPES,
    NO_CONSTRAINTS,
    Schemas,
    constants_of,
)
from milepost.errors import InvalidRequest

MAX_DEPTH = 64  # of schemas in schemas, references followed; deeper values are not written here
MAX_VALUES = 20_000  # schemas that are written for one tool; as many symbols as a grammar may have
MAX_INLINE_CHARS = 200  # of an expression that is written wherever it is used; arbitrary
SIMPLE_KINDS = ("string", "boolean", "null", "integer", "number")
NUMBER_KEYS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRING_KEYS = ("pattern", "format", "minLength", "maxLength")
# Of strings, as llguidance knows them; other formats are passed over.
FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
# Keywords by which llguidance decides about objects and lists, and this writer does not.
UNWRITTEN = ("patternProperties", "minProperties", "maxProperties", "prefixItems")


@dataclass(frozen=True, slots=True)
class LiteralDialect:
    """How values are written."""

    name: str
    true: str
    false: str
    null: str
    space: str  # a regular expression of what may stand between parts, the empty text included
    write_any_string: Callable[[GrammarWriter], str]
    write_strings: Callable[[Sequence[str], GrammarWriter], str]  # any of certain strings
    # Any but these, with its colon. A terminal takes as much as it can and never goes back: a key
    # that may hold spaces must be one terminal with what follows it.
    write_any_key: Callable[[Sequence[str], GrammarWriter], str]
    write_key: Callable[[str, GrammarWriter], str]  # without its colon
    is_open: bool = False  # objects may have more members than are named, unless a schema says so
    # JSON only: strings of a length. Where this is there, llguidance can write values as well.
    write_sized_string: Callable[[int, int | None, GrammarWriter], str] | None = None

    def colon(self, writer: GrammarWriter) -> str:
        """Return what stands between a key and its value."""
        return writer.pattern(f"{self.space}:{self.space}")

    @property
    def is_json(self) -> bool:
        """Whether values are JSON."""
        return self.write_sized_string is not None


class LiteralWriter:
    """Writes the values of the schemas of one document."""

    def __init__(
        self,
        dialect: LiteralDialect,
        root: Schema,
        writer: GrammarWriter,
        *,
        keeps_order: bool = True,
    ) -> None:
        """Write with one writer; `keeps_order` is that of `CallableTool`."""
        self._dialect = dialect
        self._schemas = Schemas(root)
        self._writer = writer
        self._keeps_order = keeps_order
        # By the id of a schema, which `Schemas` keeps. A schema in itself is a rule with a name.
        self._written: dict[int, str | None] = {}
        self._open: dict[int, str] = {}

    @property
    def comma(self) -> str:
        """What stands between two values."""
        return self._mark(",")

    def value(self, part: Schema | bool) -> str:
        """Return an expression for the values of a schema."""
        found = self._value(part, 0)
        return self._writer.json(False) if found is None else found  # which is refused as that

    def object(self, schema: Schema) -> str:
        """Return an expression for the objects of a schema, which is said to be of no other type.

        Its alternatives are objects too.
        """
        return self.value({"allOf": [{"type": "object"}, schema]})

    def anything(self) -> str:
        """Return an expression for any value."""
        # A rule that stands in itself: its name must be known before it is written.
        return self._writer.recursive(
            f"value_{self._dialect.name}",
            lambda name: choice(
                *(self._simple(kind, {}) for kind in SIMPLE_KINDS if kind != "integer"),
                self._list(name, 0, None),
                self._braces(self._writer.optional(self._repeat(self._any_member(name, ())))),
            ),
        )

    def _value(self, part: Schema | bool, depth: int) -> str | None:
        """Return an expression, None where nothing follows the schema."""
        if depth > MAX_DEPTH:
            return self._leave(self._schemas.resolve(part))
        found = (self._one(schema, depth) for schema in self._schemas.alternatives(part))
        ways = list(dict.fromkeys(way for way in found if way is not None))
        return choice(*ways) if ways else None

    def _one(self, schema: Schema, depth: int) -> str | None:
        key = id(schema)
        if key in self._written:
            return self._written[key]
        if key in self._open:
            self._open[key] = self._open[key] or self._writer.fresh("self")
            return self._open[key]
        if len(self._written) + len(self._open) > MAX_VALUES:
            raise InvalidRequest(
                f"a schema has more than {MAX_VALUES} parts when its references are followed; "
                "send a smaller one"
            )
        self._open[key] = ""
        expression = self._write(schema, depth)
        name = self._open.pop(key)
        if name and expression is not None:
            written = expression
            expression = self._writer.recursive(name, lambda _: written)
        elif expression is not None and len(expression) > MAX_INLINE_CHARS:
            expression = self._writer.rule(expression)
        self._written[key] = expression
        return expression

    def _write(self, schema: Schema, depth: int) -> str | None:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        constants = constants_of(schema)
        if constants is not None:
            wanted = [value for value in constants if kinds is None or _is_of(value, kinds)]
            return self._constants(wanted) if wanted else None
        if not isinstance(kinds, list):
            kinds = _implied_kinds(schema)
        if kinds is None:
            is_free = schema.keys() <= NO_CONSTRAINTS or not self._dialect.is_json
            return self.anything() if is_free else self._leave(schema)
        found = [self._of_kind(kind, schema, depth) for kind in kinds]
        ways = [way for way in found if way is not None]
        return choice(*ways) if ways else None

    def _of_kind(self, kind: Any, schema: Schema, depth: int) -> str | None:
        if kind in SIMPLE_KINDS:
            return self._simple(kind, schema)
        if kind not in ("array", "object"):
            return self.anything()
        items = schema.get("items", True)
        is_unwritten = any(key in schema for key in UNWRITTEN) or isinstance(items, list)
        if self._dialect.is_json and is_unwritten:
            return self._leave({**schema, "type": kind})
        if kind == "object":
            return self._object(schema, depth)
        lowest, highest = _bounds(schema, "Items")
        item = self._value(items if isinstance(items, dict | bool) else {}, depth + 1)
        if item is None and lowest > 0:
            return None
        return self._list(item, lowest, 0 if item is None else highest)

    def _object(self, schema: Schema, depth: int) -> str | None:
        named = named_properties(schema)
        if len(named) > MAX_PROPERTIES and self._dialect.is_json:
            return self._leave({**schema, "type": "object"})
        members: dict[str, str] = {}
        for one in properties_of(schema):
            value = self._value(one.schema, depth + 1)
            if value is None and one.is_required:
                return None
            if value is not None:
                members[one.name] = seq(self._key(one.name), value)
        others = self._others(schema, [one.name for one in named], depth)
        named = [one for one in named if one.name in members]
        if not named:
            return self._braces(self._writer.optional(others))
        lists = [
            self._list_in_order(order, members, others)
            for order in orders_of(named, keeps_order=self._keeps_order)
        ]
        return self._braces(choice(*lists))

    def _list_in_order(self, order: list[Property], members: dict[str, str], others: str) -> str:
        listed = [(members[one.name], one.is_required) for one in order]
        if others:
            listed.append((others, False))
        return list_in_order(listed, self.comma, self._writer)

    def _others(self, schema: Schema, names: list[str], depth: int) -> str:
        """Return an expression for members without a name of their own, "" where there are none."""
        extra = schema.get("additionalProperties", self._dialect.is_open or not names)
        extra = extra if isinstance(extra, dict | bool) else True
        value = self._value(extra, depth + 1)
        return "" if value is None else self._repeat(self._any_member(value, names))

    def _simple(self, kind: str, schema: Schema) -> str:
        dialect, writer = self._dialect, self._writer
        if kind == "string":
            return self._string(schema)
        if kind == "boolean":
            return choice(writer.plain(dialect.true), writer.plain(dialect.false))
        if kind == "null":
            return writer.plain(dialect.null)
        return writer.json({"type": kind, **_only(schema, NUMBER_KEYS)})

    def _string(self, schema: Schema) -> str:
        dialect, writer = self._dialect, self._writer
        if dialect.write_sized_string is None:
            return dialect.write_any_string(writer)
        wanted = _only(schema, STRING_KEYS)
        if "pattern" in wanted or wanted.get("format") in FORMATS:
            return writer.json({"type": "string", **wanted})
        lowest, highest = _bounds(schema, "Length")
        if lowest or highest is not None:
            return dialect.write_sized_string(lowest, highest, writer)
        return dialect.write_any_string(writer)

    def _constants(self, values: Sequence[Any]) -> str:
        texts = [value for value in values if isinstance(value, str)]
        others = [self._constant(value) for value in values if not isinstance(value, str)]
        listed = [self._dialect.write_strings(texts, self._writer)] if texts else []
        return choice(*listed, *dict.fromkeys(others))

    def _constant(self, value: Any) -> str:
        words = {True: self._dialect.true, False: self._dialect.false, None: self._dialect.null}
        if isinstance(value, str):
            return self._dialect.write_strings([value], self._writer)
        if isinstance(value, bool) or value is None:
            return self._writer.plain(words[value])
        if isinstance(value, list):
            items = list_in_order(
                [(self._constant(one), True) for one in value], self.comma, self._writer
            )
            return seq(self._opening("["), items if value else "", self._closing("]"))
        if isinstance(value, dict):
            pairs = [(seq(self._key(key), self._constant(one)), True) for key, one in value.items()]
            return self._braces(list_in_order(pairs, self.comma, self._writer) if pairs else "")
        return self._writer.plain(json.dumps(value))

    def _leave(self, schema: Schema) -> str:
        """Return an expression for what is not written here: of JSON llguidance's, else any."""
        if not self._dialect.is_json:
            return self.anything()
        return self._writer.json(as_root(schema, self._schemas.root))

    def _list(self, item: str | None, lowest: int, highest: int | None) -> str:
        items = ""
        if item is not None and highest != 0:
            least, most = max(lowest - 1, 0), "" if highest is None else max(highest, lowest) - 1
            times = "*" if (least, most) == (0, "") else f"{{{least},{most}}}"
            items = seq(item, f"({seq(self.comma, item)}){times}")
            items = items if lowest else self._writer.optional(items)
        return seq(self._opening("["), items, self._closing("]"))

    def _braces(self, members: str) -> str:
        return seq(self._opening("{"), members, self._closing("}"))

    def _key(self, name: str) -> str:
        return seq(self._dialect.write_key(name, self._writer), self._dialect.colon(self._writer))

    def _any_member(self, value: str, names: Sequence[str]) -> str:
        key = self._dialect.write_any_key(names, self._writer)
        return seq(key, value)

    def _repeat(self, item: str) -> str:
        return seq(item, f"({seq(self.comma, item)})*")

    def _mark(self, mark: str) -> str:
        return self._writer.pattern(f"{self._dialect.space}{mark}{self._dialect.space}")

    def _opening(self, mark: str) -> str:
        return self._writer.pattern(f"\\x{ord(mark):x}{self._dialect.space}")

    def _closing(self, mark: str) -> str:
        return self._writer.pattern(f"{self._dialect.space}\\x{ord(mark):x}")


def _implied_kinds(schema: Schema) -> list[str] | None:
    """Return what a schema without a type is of: it may say so by what it asks for."""
    if "properties" in schema or "required" in schema:
        return ["object"]
    return ["array"] if "items" in schema else None


def _is_of(value: Any, kinds: object) -> bool:
    kind = JSON_TYPES.get(type(value), "object")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return kind in listed or (kind == "integer" and "number" in listed)


def _only(schema: Schema, keys: Sequence[str]) -> Schema:
    return {key: schema[key] for key in keys if key in schema}


def _bounds(schema: Schema, kind: str) -> tuple[int, int | None]:
    """Return `minItems` and `maxItems`, or those of another kind, as far as they are numbers."""
    lowest, highest = schema.get(f"min{kind}"), schema.get(f"max{kind}")
    return (
        max(lowest, 0) if isinstance(lowest, int) else 0,
        max(highest, 0) if isinstance(highest, int) else None,
    )

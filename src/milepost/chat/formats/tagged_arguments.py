"""The grammar of arguments that stand in tags of their own.

Raw text ends at its closing tag where the next argument, or the end of the call, follows: text
about tags may stand in it. So what follows a value is written together with its end:

    <parameter=  path> a.py </parameter> <parameter=   line> 3 </parameter> </function>
                 ^ node                                ^ node
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.chat.formats.call_schemas import (
    CallableTool,
    Property,
    orders_of,
    properties_of,
    takes_others,
)
from milepost.chat.formats.grammar_writer import (
    MAX_SPACE,
    GrammarWriter,
    Schema,
    choice,
    is_token,
    quote,
    quote_regex,
    seq,
)
from milepost.chat.formats.json_values import JSON
from milepost.chat.formats.literal_values import LiteralWriter
from milepost.chat.formats.schema_resolver import Schemas, constants_of

# An argument that no schema names, or the schema of a tool that is not strict.
OTHER_KEY = r"[^<>\x22\s]([^<>\x22\n]{0,126}[^<>\x22\s])?"
ANY_TEXT = r"(.|\n)*"


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """The tags around keys and values, as the template writes them."""

    key_start: str
    key_end: str  # all up to the value
    json_key_end: str  # the same before values that are no strings; "" where it is no other
    value_end: str
    end: str  # of the call, after the last argument


def write_tagged_arguments(tags: ArgumentTags, tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for all arguments of a tool, and the end of the call."""
    schemas = Schemas(tool.schema)
    if not tool.is_strict:
        return _TaggedArguments(tags, tool, schemas, [], True, writer).write()
    return choice(
        *(
            _TaggedArguments(tags, tool, schemas, order, takes_others(schema), writer).write()
            for schema in schemas.alternatives(tool.schema)
            for order in orders_of(properties_of(schema), keeps_order=tool.keeps_order)
        )
    )


class _TaggedArguments:
    """Writes arguments of one tool in one order, each as a node that knows what may follow."""

    def __init__(
        self,
        tags: ArgumentTags,
        tool: CallableTool,
        schemas: Schemas,
        named: list[Property],
        takes_others: bool,
        writer: GrammarWriter,
    ) -> None:
        self._tags = tags
        self._tool = tool
        self._schemas = schemas
        self._writer = writer
        self._json = LiteralWriter(JSON, tool.schema, writer, keeps_order=tool.keeps_order)
        self._named = named
        self._names = [writer.fresh("arg") for _ in (*self._named, None)]
        required = [i for i, one in enumerate(self._named) if one.is_required]
        self._last_required = max(required, default=-1)
        self._rests: dict[int, str] = {}  # by node
        self._takes_others = takes_others
        self._key_start = tags.key_start.strip()
        self._value_end = tags.value_end.strip()
        self._end = tags.end

    def write(self) -> str:
        """Return an expression for all arguments and the end."""
        for node in reversed(range(len(self._named) + 1)):  # each finds the next one written
            self._rest(node)
        return self._after_value(0)

    def _after_value(self, node: int) -> str:
        """Return an expression for the arguments from a node on, where another one is complete."""
        rest = self._rest(node)
        ways = [seq(self._writer.exact(self._key_start), rest)] if rest else []
        return choice(*ways, *([self._writer.exact(self._end)] if self._may_end(node) else ()))

    def _may_end(self, node: int) -> bool:
        return node > self._last_required

    def _rest(self, node: int) -> str:
        """Return an expression for the arguments from a node on, "" where there are none.

        The last node is any argument without a name of its own.
        """
        if node not in self._rests:
            self._rests[node] = self._write_rest(node)
        return self._rests[node]

    def _write_rest(self, node: int) -> str:
        if node == len(self._named):
            return self._node(node) if self._takes_others else ""
        later = "" if self._named[node].is_required else self._rest(node + 1)
        return self._writer.rule(choice(self._node(node), later)) if later else self._node(node)

    def _node(self, node: int) -> str:
        write = self._write_named if node < len(self._named) else self._write_other
        return self._writer.recursive(self._names[node], lambda _: write(node))

    def _write_named(self, node: int) -> str:
        one = self._named[node]
        ways = self._values(one)
        name = self._writer.plain(one.name)
        if not ways:
            return seq(name, self._raw(node + 1))
        return seq(name, choice(*ways), self._after_tag(node + 1))

    def _write_other(self, node: int) -> str:
        key, tags = self._writer.pattern(OTHER_KEY), self._tags
        if not tags.json_key_end:
            return seq(key, self._raw(node))
        value = self._value(tags.json_key_end, self._json.anything())
        return seq(key, choice(self._raw(node), seq(value, self._after_tag(node))))

    def _values(self, one: Property) -> list[str]:
        """Return the ways to write a value that ends by itself, none for any string."""
        tags = self._tags
        json_key_end = tags.json_key_end or tags.key_end
        ways: list[str] = []
        texts: list[str] = []
        for schema in self._schemas.alternatives(one.schema):
            types = self._schemas.types(schema)
            constants = constants_of(schema)
            if constants is None and (not types or "string" in types):
                return []
            texts += [value for value in constants or () if isinstance(value, str)]
            if constants is None or not all(isinstance(value, str) for value in constants):
                ways.append(self._value(json_key_end, self._json.value(_without_texts(schema))))
        return [*self._text_values(texts), *dict.fromkeys(ways)]

    def _value(self, key_end: str, value: str) -> str:
        writer = self._writer
        return seq(writer.start_marker(key_end), value, writer.end_marker(self._value_end))

    def _text_values(self, texts: list[str]) -> list[str]:
        """Return any of certain texts; only the line breaks of the template may stand beside."""
        writer, tags = self._writer, self._tags
        line_break = writer.optional(writer.plain("\n"))
        words = writer.words(quote_regex(text) for text in texts if text) if any(texts) else ""
        if not texts:
            return []
        return [
            seq(
                writer.exact(tags.key_end.rstrip()),
                line_break if tags.key_end.endswith("\n") else "",
                writer.optional(words) if "" in texts else words,
                line_break if tags.value_end.startswith("\n") else "",
                writer.exact(self._value_end),
            )
        ]

    def _after_tag(self, node: int) -> str:
        return seq(self._writer.space, self._after_value(node))

    def _raw(self, node: int) -> str:
        """Return raw text, its end tag, and the arguments from a node on."""
        writer = self._writer
        key_end = writer.exact(self._tags.key_end.rstrip())
        if any(is_token(writer.exact(tag)) or not tag for tag in self._end_tags):
            end_of_text = writer.short_until(self._value_end, ANY_TEXT)
            return seq(key_end, end_of_text, self._after_tag(node))
        ways = []
        if rest := self._rest(node):
            ways.append(seq(self._text_before(self._key_start), rest))
        if self._may_end(node):
            ways.append(self._text_before(self._end))
        return seq(key_end, choice(*ways))

    @property
    def _end_tags(self) -> tuple[str, str, str]:
        return self._value_end, self._key_start, self._end

    def _text_before(self, tag: str) -> str:
        """Return text up to its end tag where another tag stands after that."""
        space = rf"/[ \t\r\n]{{0,{MAX_SPACE}}}/"
        return self._writer.lazy(f"/{ANY_TEXT}/ {quote(self._value_end)} {space} {quote(tag)}")


def _without_texts(schema: Schema) -> Schema:
    """Return a schema without its constants that are texts."""
    constants = constants_of(schema)
    if constants is None:
        return schema
    others = [value for value in constants if not isinstance(value, str)]
    return {key: value for key, value in schema.items() if key != "const"} | {"enum": others}

r"""JSON values in grammars, with every escape that JSON has in its strings.

llguidance's own JSON allows no more escapes than strings need, so that a model that begins to write
`é` as `\u00e9` could only go on with a control character.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import (
    JSON_SPACE,
    GrammarWriter,
    Schema,
    quote_regex,
    seq,
)
from milepost.chat.formats.literal_values import LiteralDialect, LiteralWriter

# `\u`, with the second half of a character after the first one.
UNIT_ESCAPE = (
    r"\\u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
CHARACTER = r'([^"\\\x00-\x1f\x7f]|\\["\\\x2fbfnrt]|' + UNIT_ESCAPE + ")"


def write_json(schema: Schema, writer: GrammarWriter) -> str:
    """Return an expression for the JSON values of a schema, which refers to nothing outside it."""
    return LiteralWriter(JSON, schema, writer).value(schema)


def write_arguments(tool: CallableTool, writer: GrammarWriter) -> str:
    """Return an expression for the arguments of a tool as JSON: any object unless it is strict."""
    values = LiteralWriter(JSON, tool.schema, writer, keeps_order=tool.keeps_order)
    return values.object(tool.schema if tool.is_strict else {})


def write_json_part(part: Schema | bool, root: Schema, writer: GrammarWriter) -> str:
    """Return an expression for the JSON values of a part of a schema."""
    return LiteralWriter(JSON, root, writer).value(part)


def string_regex(text: str, quote_form: Callable[[str], str] = quote_regex) -> str:
    """Return a regular expression for what stands for a text in a JSON string.

    `quote_form` makes one of a piece of such a string.
    """
    chars = text.encode("utf-8", "replace").decode()
    return "".join(_any_of([quote_form(form) for form in _forms_of(char)]) for char in chars)


def _forms_of(char: str) -> list[str]:
    """Return how a character is written in a JSON string; letters and digits by themselves only."""
    if char.isascii() and char.isalnum():
        return [char]
    escaped = json.dumps(char)[1:-1]
    plain = json.dumps(char, ensure_ascii=False)[1:-1]
    data = char.encode("utf-16-be").hex()
    units = [data[i : i + 4] for i in range(0, len(data), 4)]
    coded = [
        "".join(rf"\u{unit}" for unit in units),
        "".join(rf"\u{unit.upper()}" for unit in units),
    ]
    slash = [r"\/"] if char == "/" else []
    return list(dict.fromkeys([plain, escaped, *coded, *slash]))


def _any_of(regexes: list[str]) -> str:
    return regexes[0] if len(regexes) == 1 else f"({'|'.join(regexes)})"


def _write_any_string(writer: GrammarWriter) -> str:
    return writer.pattern(f'"{CHARACTER}*"')


def _write_sized_string(lowest: int, highest: int | None, writer: GrammarWriter) -> str:
    return writer.pattern(f'"{CHARACTER}{{{lowest},{"" if highest is None else highest}}}"')


def _write_strings(texts: Sequence[str], writer: GrammarWriter) -> str:
    return writer.words(map(string_regex, texts), '"', '"')


def _write_any_key(names: Sequence[str], writer: GrammarWriter) -> str:
    key = _write_any_string(writer)
    if names:
        key = writer.other_than(key, _write_strings(names, writer))
    return seq(key, JSON.colon(writer))


def _write_key(name: str, writer: GrammarWriter) -> str:
    return _write_strings([name], writer)


JSON = LiteralDialect(
    name="json",
    true="true",
    false="false",
    null="null",
    space=f"({JSON_SPACE})?",
    write_any_string=_write_any_string,
    write_strings=_write_strings,
    write_any_key=_write_any_key,
    write_key=_write_key,
    is_open=True,
    write_sized_string=_write_sized_string,
)

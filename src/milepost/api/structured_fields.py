"""Fields that say what text must look like, on every generating endpoint.

`grammar` is llama.cpp's and goes to the engine as it is; JSON schemas become grammars here.
"""

from __future__ import annotations

from milepost.api.fields import quote
from milepost.api.generation_fields import GenerationFields
from milepost.api.services import Services
from milepost.chat.formats.grammar_writer import Schema
from milepost.chat.replies.reply_rules import make_value_constraint
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest

ANY_OBJECT: Schema = {"type": "object"}


def parse_response_format(value: object, checker: GrammarChecker) -> Schema | None:
    """Return the schema that `response_format` asks for, None for any text."""
    if value is None:
        return None
    kind = value.get("type", "text") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise _invalid(
            "response_format",
            'must be an object with the type "text", "json_object" or "json_schema", '
            f"but is {quote(value)}",
        )
    if kind == "text":
        return None
    where, inner = "response_format", value
    if isinstance(value.get("json_schema"), dict):  # OpenAI's nesting; llama-server has neither
        where, inner = "response_format.json_schema", value["json_schema"]
    if inner.get("schema") is None:
        if kind == "json_schema":
            raise _invalid(f"{where}.schema", "is missing; send the JSON schema there")
        return ANY_OBJECT
    is_exact = inner.get("strict") is True
    return prepare_schema(inner["schema"], f"{where}.schema", checker, is_exact=is_exact)


def read_schema(fields: GenerationFields, checker: GrammarChecker) -> Schema | None:
    """Return the schema of the text, None for any text.

    Raises InvalidRequest for a bad one, with its place, and for two fields that both constrain.
    """
    schema = parse_response_format(fields.response_format, checker)
    if fields.json_schema is not None:
        if schema is not None:
            raise _conflict("json_schema", "response_format")
        schema = prepare_schema(fields.json_schema, "json_schema", checker, is_exact=False)
    if schema is not None and fields.grammar:
        name = "response_format" if fields.json_schema is None else "json_schema"
        raise _conflict("grammar", name)
    return schema


def make_text_constraint(fields: GenerationFields, services: Services) -> str:
    """Return the grammar that the fields ask for, "" for none: all of the text is the value."""
    schema = read_schema(fields, services.grammars)
    return "" if schema is None else make_value_constraint(schema, services.grammars)


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {what}", param=where)


def _conflict(first: str, second: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{first}' and '{second}' both say what the text must look like; send one of them",
        param=first,
    )

"""Fields that say what text must look like, on every generating endpoint.

`grammar` is llama.cpp's and goes to the engine as it is; JSON schemas become grammars here.
"""

from __future__ import annotations

from milepost.api.generation_fields import GenerationFields
from milepost.api.services import Services
from milepost.chat.formats.grammar_writer import Schema
from milepost.chat.replies.reply_rules import make_value_constraint, parse_response_format
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.errors import InvalidRequest


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


def _conflict(first: str, second: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{first}' and '{second}' both say what the text must look like; send one of them",
        param=first,
    )

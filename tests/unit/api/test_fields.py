from __future__ import annotations

import pytest

from milepost.api.http_body import parse_body, quote
from milepost.api.native.schemas import TokenizeFields
from milepost.api.openai.schemas import ChatFields
from milepost.errors import InvalidRequest


def refuse(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(ChatFields, body)
    return caught.value


def test_unknown_fields_and_nulls_are_ignored() -> None:
    fields = parse_body(ChatFields, b'{"messages": [], "top_k": null, "frobnicate": 1}')

    assert fields.top_k is None
    assert fields.messages == []


def test_a_whole_float_is_an_integer() -> None:
    fields = parse_body(ChatFields, b'{"messages": [], "top_k": 40.0, "temperature": 1}')

    assert (fields.top_k, fields.temperature) == (40, 1.0)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"{}", "'messages' is required", "messages"),
        (
            b'{"messages": [], "temperature": "hot"}',
            "'temperature' must be a number, but is \"hot\"",
            "temperature",
        ),
        (
            b'{"messages": [], "temperature": NaN}',
            "'temperature' must be a finite number, but is NaN",
            "temperature",
        ),
        (
            b'{"messages": [], "temperature": 1e999}',
            "'temperature' must be a finite number, but is Infinity",
            "temperature",
        ),
        (b'{"messages": [], "top_k": 1.5}', "'top_k' must be an integer, but is 1.5", "top_k"),
        (b'{"messages": [], "top_k": "5"}', "'top_k' must be an integer, but is \"5\"", "top_k"),
        (b'{"messages": [], "top_k": true}', "'top_k' must be an integer, but is true", "top_k"),
        (
            b'{"messages": [], "stream": "yes"}',
            "'stream' must be true or false, but is \"yes\"",
            "stream",
        ),
        (
            b'{"messages": [], "stream_options": {"include_usage": 1}}',
            "'stream_options.include_usage' must be true or false, but is 1",
            "stream_options.include_usage",
        ),
        (b"[]", "the body must be a JSON object", None),
        (b"", "the request has no body; a JSON object is expected", None),
    ],
)
def test_a_wrong_field_is_named_with_its_value(
    body: bytes, message: str, param: str | None
) -> None:
    error = refuse(body)

    assert str(error) == message
    assert error.param == param


def test_malformed_json_names_the_position() -> None:
    assert "at line 1 column 15" in str(refuse(b'{"messages": [}'))


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    assert "recursion limit" in str(refuse(b'{"messages": ' + b"[" * 10_000))


def test_values_in_sentences_are_shortened() -> None:
    assert quote("x" * 100) == '"' + "x" * 59 + "…"


def test_every_field_has_a_default_where_llama_server_has_one() -> None:
    assert parse_body(TokenizeFields, b"{}").content == ""

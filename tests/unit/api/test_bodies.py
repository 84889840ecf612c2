"""Request bodies as clients write them: compressed, with a byte order mark, with halved pairs."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Api

from milepost.config import ServerSettings, Settings

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
GZIP = {"Content-Encoding": "gzip"}
SMALL_BODIES = Settings(server=ServerSettings(max_body_bytes=1 << 20))


def send(api: Api, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    return api.request("POST", "/apply-template", content=body, headers=headers or {})


def error_of(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return message


def test_a_byte_order_mark_is_no_part_of_the_text(api: Api) -> None:
    assert send(api, b"\xef\xbb\xbf" + json.dumps(CHAT).encode()).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
def test_a_compressed_body_is_read(api: Api, encoding: str) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "hi there " * 500_000}]}
    for fields in (CHAT, long):
        text = b"\xef\xbb\xbf" + json.dumps(fields).encode()
        response = send(api, gzip.compress(text), {"Content-Encoding": encoding})
        assert response.status_code == 200
        assert fields["messages"][0]["content"].strip() in response.json()["prompt"]  # type: ignore[index]


def test_a_compressed_body_may_have_parts(api: Api) -> None:
    text = json.dumps(CHAT).encode()
    body = gzip.compress(text[:9]) + gzip.compress(text[9:])
    assert send(api, body, GZIP).status_code == 200


def test_a_compressed_body_is_no_larger_than_others(api: Api) -> None:
    api.settings = SMALL_BODIES
    for size in (1 << 20, 50 << 20):
        body = gzip.compress(json.dumps(CHAT).encode() + b" " * size)
        response = send(api, body, GZIP)
        assert response.status_code == 413
        assert "over the limit of 1048576" in error_of(response)


@pytest.mark.parametrize(
    "body", [b"no gzip", gzip.compress(json.dumps(CHAT).encode())[:-5]], ids=["other", "cut"]
)
def test_damage_in_a_compressed_body_is_named(api: Api, body: bytes) -> None:
    response = send(api, body, GZIP)
    assert response.status_code == 400
    assert error_of(response).startswith("the request body is not valid gzip: ")


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip"])
def test_another_compression_is_refused_with_what_works(api: Api, encoding: str) -> None:
    response = send(api, b"...", {"Content-Encoding": encoding})
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip"
    assert error_of(response) == (
        f'the request body has the content encoding "{encoding}"; '
        "send it as it is, or compressed with gzip"
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"cut \ud83d", "cut �"),
        (r"\ude00 cut", "� cut"),
        (r"\ud83d\ud83d\ude00", "�😀"),
        (r"\uD83D\uDE00\uDE00", "😀�"),
        (r"\\ud83d \\\ud83d \"\ud83d\"", '\\ud83d \\� "�"'),
        (r"\ud83d\\ude00", "�\\ude00"),
        (r"\ud83d\n\u00e9\ud83dA", "�\né�A"),
    ],
)
def test_half_a_pair_is_a_replacement_character(api: Api, written: str, read: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "<{written}>"}}]}}'
    response = send(api, body.encode())
    assert response.status_code == 200, response.text
    assert f"<{read}>" in response.json()["prompt"]


def test_what_is_no_json_beside_half_a_pair_is_refused(api: Api) -> None:
    response = send(api, rb'{"messages": ["\ud83d", \x]}')
    assert response.status_code == 400
    assert "not valid JSON" in error_of(response)


CALL = {"id": "a", "type": "function", "function": {"name": "w", "arguments": r'{"a": "\ud83d"}'}}


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "a \ud83d"},
        {"content": [{"type": "text", "text": "a \ude00"}]},
        {"role": "assistant", "content": "a", "reasoning_content": "\ud83d"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "\ud83d"}]},
        {"role": "tool", "tool_call_id": "\ud83d", "content": "cut \ud83d"},
        {"name": "\ud83d", "content": "a"},
    ],
)
def test_half_a_pair_may_stand_in_any_text(api: Api, changes: dict[str, Any]) -> None:
    first = {"role": "user", "content": "hi"}
    messages = [first, {"role": "user", **changes}, {**first, "content": "go on"}]
    tools = [{"type": "function", "function": {"name": "w", "description": "\ud83d"}}]
    for extra in ({}, {"tools": tools}, {"stop": ["\ud83d"]}, {"user": "\ud83d"}):
        response = api.request(
            "POST", "/v1/chat/completions", content=json.dumps({"messages": messages, **extra})
        )
        assert response.status_code == 200, response.text

"""The recorder notes chats that pass through it, and nothing else about them."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from milepost.traces.recorder import Recorder
from milepost.traces.trace import TraceRequest, read_trace

BODY = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5}
HALVED = rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}'
ANSWER = {
    "choices": [
        {"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"},
    ]
}
EVENTS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "H"}}]},
    {"choices": [{"index": 1, "delta": {"content": "other"}}]},
    {"choices": [{"index": 0, "delta": {"content": "i"}}]},
]


def frame(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


class App:
    """An ASGI app that reads the request and answers with some chunks."""

    def __init__(self, *chunks: bytes, status: int = 200, ends: bool = True) -> None:
        self.chunks, self.status, self.ends = chunks, status, ends

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": self.status})
        for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self.ends:
            await send({"type": "http.response.body"})


def exchange(
    app: App, path: Path, body: bytes | None = None, url: str = "/v1/chat/completions"
) -> list[Any]:
    """Send one request through a recorder, end its app, and return what was sent."""
    text = json.dumps(BODY).encode() if body is None else body
    parts = [
        {"type": "http.request", "body": part, "more_body": True} for part in (text[:9], text[9:])
    ]
    events = iter([*parts, {"type": "http.request"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(event: Any) -> None:
        sent.append(event)

    async def run() -> None:
        recorder = Recorder(app, path)
        headers = [(b"authorization", b"Bearer secret-key")]
        scope = {"type": "http", "method": "POST", "path": url, "headers": headers}
        await recorder(scope, receive, send)
        await recorder({"type": "lifespan"}, receive, send)

    asyncio.run(run())
    return sent


def recorded(app: App, tmp_path: Path, **fields: Any) -> list[TraceRequest]:
    path = tmp_path / "day.jsonl"
    exchange(app, path, **fields)
    return list(read_trace(path).requests())


def test_an_answer_in_one_piece_is_recorded(tmp_path: Path) -> None:
    (request,) = recorded(App(json.dumps(ANSWER).encode()), tmp_path)

    assert request.messages == BODY["messages"]
    assert request.reply == {"role": "assistant", "content": "Hi"}
    assert request.markers["stop"] == "length"


def test_a_stream_is_recorded_as_the_message_that_it_makes(tmp_path: Path) -> None:
    (request,) = recorded(App(*map(frame, EVENTS), b"data: [DONE]\n\n"), tmp_path)

    assert request.reply == {"role": "assistant", "content": "Hi"}
    assert "stop" not in request.markers


@pytest.mark.parametrize(("num_events", "fraction"), [(1, 0.5), (2, None)])
def test_a_client_that_left_is_recorded(
    tmp_path: Path, num_events: int, fraction: float | None
) -> None:
    (request,) = recorded(App(*map(frame, EVENTS[:num_events]), ends=False), tmp_path)

    assert request.markers["stop"] == "aborted"
    assert request.cancel_after_fraction == fraction


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (gzip.compress(json.dumps(BODY).encode()), "Hello"),
        (b"\xef\xbb\xbf" + json.dumps(BODY).encode(), "Hello"),
        (
            HALVED,
            "cut \ufffd",
        ),
    ],
    ids=["gzip", "mark", "half a pair"],
)
def test_a_body_is_read_as_the_server_reads_it(tmp_path: Path, body: bytes, content: str) -> None:
    (request,) = recorded(App(json.dumps(ANSWER).encode()), tmp_path, body=body)
    assert request.messages == [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    "body",
    [b"\x1f\x8b??", gzip.compress(b"{}")[:-3], b"[", b"\xff"],
    ids=["no gzip", "cut", "no JSON", "no text"],
)
def test_a_body_that_cannot_be_read_is_passed_over(tmp_path: Path, body: bytes) -> None:
    assert recorded(App(json.dumps(ANSWER).encode()), tmp_path, body=body) == []


@pytest.mark.parametrize(
    ("app", "fields"),
    [
        (App(b"{}", status=400), {}),
        (App(b"{}"), {"body": b"no json"}),
        (App(b"{}"), {"body": b'{"messages": []}'}),
        (App(b"{}"), {"body": b'{"messages": ["text"]}'}),
        (App(b"{}"), {"url": "/v1/completions"}),
    ],
)
def test_what_is_no_answered_chat_is_not_recorded(
    tmp_path: Path, app: App, fields: dict[str, Any]
) -> None:
    assert recorded(app, tmp_path, **fields) == []


def test_everything_passes_unchanged(tmp_path: Path) -> None:
    app = App(b"one", b"two")

    sent = exchange(app, tmp_path / "day.jsonl")

    assert [event.get("body") for event in sent] == [None, b"one", b"two", None, None]


def test_no_header_is_kept_and_only_the_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    exchange(App(json.dumps(ANSWER).encode()), path)

    assert "secret" not in path.read_text()
    assert "temperature" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_one_warning_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exchange(App(json.dumps(ANSWER).encode()), tmp_path / "day.jsonl")

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "recording all chats with their texts into" in record.getMessage()


def test_the_first_request_of_a_second_run_comes_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    for _ in range(2):
        exchange(App(json.dumps(ANSWER).encode()), path)

    first, second = read_trace(path).requests()

    assert (first.has_restart_before, second.has_restart_before) == (False, True)
    assert second.t >= first.t

"""`milepost serve --record FILE`: writes the chats that pass through the server into a trace.

Wraps the ASGI app and changes nothing that passes. Only messages, tools and replies are kept, no
headers and no keys. `assemble` puts it around the app when it is asked for.
"""

from __future__ import annotations

import asyncio
import codecs
import datetime
import gzip
import io
import json
import logging
import re
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from milepost.errors import BenchmarkFailed
from milepost.traces.answer import AnswerReader
from milepost.traces.recording import RecordedRequest, Recording
from milepost.traces.trace import MAIN_THREAD, Message, Trace, read_trace, write_trace

logger = logging.getLogger(__name__)

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
# The whole file is written each time: its first line holds all messages. Arbitrary.
WRITE_INTERVAL_S = 10.0
GZIP_MAGIC = b"\x1f\x8b"  # no JSON text begins with it
MAX_PLAIN_BYTES = 1 << 28  # of a compressed body; arbitrary: more than the server takes
SURROGATES = re.compile("[\ud800-\udfff]")

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class _Exchange:
    """What passes for one request."""

    id: int
    t: float
    start_s: float
    request: bytearray = field(default_factory=bytearray)
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)
    is_complete: bool = False


class Recorder:
    """ASGI middleware around the whole app."""

    def __init__(self, app: App, path: Path) -> None:
        """Begin a recording, or go on with the one in the file. Raises BenchmarkFailed."""
        self._app = app
        self._path = path
        self._recording = open_recording(path)
        self._is_first = True  # of this process
        self._goes_on = bool(self._recording.trace.lines)
        self._started = datetime.datetime.fromisoformat(self._recording.trace.started)
        self._writer: asyncio.Task[None] | None = None
        logger.warning("recording all chats with their texts into %s", path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note it when it is a chat."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._writing_at_end(send))
        elif scope["type"] == "http" and scope["path"] in CHAT_PATHS and scope["method"] == "POST":
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = datetime.datetime.now(datetime.UTC)
        exchange = _Exchange(
            id=self._recording.take_id(),
            t=(now - self._started).total_seconds(),
            start_s=time.monotonic(),
        )
        try:
            await self._app(
                scope, _noting_request(receive, exchange), _noting_answer(send, exchange)
            )
        finally:
            self._note(exchange)

    def _note(self, exchange: _Exchange) -> None:
        if exchange.status not in (0, 200):  # refused: a replay would be refused too
            return
        request = read_exchange(exchange, comes_after_restart=self._goes_on and self._is_first)
        if request is None:
            return
        self._is_first = False
        self._recording.add(request)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_later())

    async def _write_later(self) -> None:
        await asyncio.sleep(WRITE_INTERVAL_S)
        await self._write()

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(write_trace, self._path, self._recording.to_trace())
        except BenchmarkFailed as error:  # a full disk must not end the answers
            logger.error("the recording is behind: %s", error)

    def _writing_at_end(self, send: Send) -> Send:
        """Return a `send` for the app's lifespan that writes before it reports the end."""

        async def write_and_send(event: Event) -> None:
            if event["type"] == "lifespan.shutdown.complete":  # nothing is awaited after it
                if self._writer is not None:
                    self._writer.cancel()
                await self._write()
            await send(event)

        return write_and_send


def open_recording(path: Path) -> Recording:
    """Return the recording in a file, or a new one; the file is there then.

    Raises BenchmarkFailed when it cannot be written, or holds something else.
    """
    if path.exists():
        trace = read_trace(path)
        if set(trace.threads) != {MAIN_THREAD} or not trace.started:
            raise BenchmarkFailed(f"{path} is a trace, but not a recording; choose another file")
        return Recording(trace)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    trace = Trace(
        name=path.stem, variant="recorded", started=started, threads={MAIN_THREAD: []}, lines=()
    )
    write_trace(path, trace)
    return Recording(trace)


def read_exchange(exchange: _Exchange, *, comes_after_restart: bool) -> RecordedRequest | None:
    """Return the request that was exchanged; None when it is no chat."""
    try:
        body = _read_request(bytes(exchange.request))
        messages, tools = body["messages"], body.get("tools") or []
        is_chat = messages and all(isinstance(message, dict) for message in messages)
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError):
        return None
    if not is_chat or not isinstance(tools, list):
        return None
    reply, has_begun, finish_reason = _read_answer(bytes(exchange.answer))
    return RecordedRequest(
        id=exchange.id,
        t=exchange.t,
        took_s=time.monotonic() - exchange.start_s,
        messages=messages,
        tools=tools,
        reply=reply,
        was_abandoned=not exchange.is_complete,
        has_begun=has_begun,
        finish_reason=finish_reason,
        comes_after_restart=comes_after_restart,
    )


def _read_request(body: bytes) -> Any:
    """Return what a request says, however the client has written its body."""
    if body.startswith(GZIP_MAGIC):
        with gzip.open(io.BytesIO(body)) as file:
            body = file.read(MAX_PLAIN_BYTES)
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:  # it does not take halves of surrogate pairs, which servers do
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return msgspec.json.decode(SURROGATES.sub("\ufffd", text))


def _read_answer(answer: bytes) -> tuple[Message, bool, str]:
    """Return the reply, whether it had begun, and why it ended."""
    try:
        if answer.startswith(b"{"):
            choice = msgspec.json.decode(answer)["choices"][0]
            return choice["message"], True, str(choice.get("finish_reason"))
        reader = AnswerReader(0.0)
        for line in answer.decode("utf-8", errors="replace").split("\n"):
            reader.read_line(line, 0.0)
    except (ValueError, LookupError, TypeError):  # the client left in the middle of an event
        return {"role": "assistant", "content": ""}, bool(answer), ""
    return reader.finish("ok", 0.0).reply, reader.has_begun(), reader.finish_reason


def _noting_request(receive: Receive, exchange: _Exchange) -> Receive:
    async def receive_and_note() -> Event:
        event = await receive()
        if event["type"] == "http.request":
            exchange.request += event.get("body", b"")
        return event

    return receive_and_note


def _noting_answer(send: Send, exchange: _Exchange) -> Send:
    async def send_and_note(event: Event) -> None:
        if event["type"] == "http.response.start":
            exchange.status = event["status"]
        elif event["type"] == "http.response.body":
            exchange.answer += event.get("body", b"")
        await send(event)
        if event["type"] == "http.response.body" and not event.get("more_body", False):
            exchange.is_complete = True

    return send_and_note

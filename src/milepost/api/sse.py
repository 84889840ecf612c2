"""Server-sent events: frames, and the response that writes them while it watches the client.

    data: {json}\\n\\n      an event
    :\\n\\n                 a comment, sent when the stream was silent for a while
    data: [DONE]\\n\\n      the end, in OpenAI's dialects

What an event says is the business of the dialects; they hand in a `StreamSource`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from milepost.api.error_responses import describe_error, log_error
from milepost.errors import ClientLeft

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]

_encoder = msgspec.json.Encoder()


class StreamSource(Protocol):
    """What a dialect streams."""

    async def __aenter__(self) -> StreamSource:
        """Start the work; an error here is still a plain HTTP answer."""

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop the work, if it still goes on."""

    def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the stream ends."""


def encode_event(event: msgspec.Struct) -> bytes:
    """Return an event as a frame."""
    return b"data: " + _encoder.encode(event) + b"\n\n"


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return what it returns; cancel it and raise ClientLeft when the client goes.

    The body of the request must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class EventStreamResponse(Response):
    """Streams a source to the client, with pings, until it ends or the client leaves.

    Headers go out as soon as the source has started, before its first frame.
    """

    def __init__(self, source: StreamSource, ping_interval_s: float) -> None:
        self.status_code = 200
        self.background = None
        self._source = source
        self._ping_interval_s = ping_interval_s  # <= 0: no pings
        self._last_sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; called by Starlette."""
        async with self._source:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            self._last_sent_s = asyncio.get_running_loop().time()
            await run_while_connected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        pinger = asyncio.ensure_future(self._ping(send)) if self._ping_interval_s > 0 else None
        try:
            await self._write_frames(send)
        finally:
            if pinger is not None:
                pinger.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_frames(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        try:
            async for frame in self._source.frames():
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._last_sent_s = now()
        except Exception as error:  # the edge: the headers are out, so the stream must say it
            log_error(error, "a stream")
            frame = encode_event(describe_error(error))
            await send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _ping(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        while True:
            silence_s = now() - self._last_sent_s
            if silence_s < self._ping_interval_s:
                await asyncio.sleep(self._ping_interval_s - silence_s)
                continue
            await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._last_sent_s = now()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

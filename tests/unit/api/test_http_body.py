from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from milepost.api.http_body import PING, EventStreamResponse, run_while_connected
from milepost.errors import ClientLeft, EngineDied, Unavailable

Message = MutableMapping[str, Any]
T = TypeVar("T")


class Source:
    """A stream of what `steps` yield: frames are sent, events waited for, exceptions raised."""

    def __init__(self, *steps: bytes | asyncio.Event | Exception, fails: bool = False) -> None:
        self._steps = steps
        self._fails = fails
        self.was_left = asyncio.Event()

    async def __aenter__(self) -> Source:
        if self._fails:
            raise Unavailable("the queue is full")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.was_left.set()

    async def frames(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield step


class Client:
    """The other side of an ASGI app: keeps what is sent, leaves when told to."""

    def __init__(
        self,
        on_body: Callable[[bytes], None] = lambda body: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self.sent: list[Message] = []
        self.has_left = asyncio.Event()
        self._on_body = on_body
        self._on_start = on_start

    async def receive(self) -> Message:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.start":
            self._on_start()
        if body := message.get("body"):
            self._on_body(body)

    @property
    def body(self) -> bytes:
        """All that came after the headers."""
        return b"".join(message.get("body", b"") for message in self.sent)


async def stream(source: Source, client: Client, ping_interval_s: float = -1) -> None:
    response = EventStreamResponse(source, ping_interval_s)
    await response({"type": "http"}, client.receive, client.send)


async def within(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but not for ever."""
    return await asyncio.wait_for(work, 5)


def test_frames_are_written_in_order_and_the_end_is_marked() -> None:
    async def run() -> Client:
        client = Client()
        await stream(Source(b"one", b"two"), client)
        return client

    client = asyncio.run(run())

    assert client.sent[0]["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in client.sent[0]["headers"]
    assert [m["body"] for m in client.sent[1:]] == [b"one", b"two", b""]
    assert [m["more_body"] for m in client.sent[1:]] == [True, True, False]


def test_headers_go_out_before_the_first_frame() -> None:
    async def run() -> None:
        gate = asyncio.Event()
        client = Client(on_start=gate.set)  # the frame waits for the headers
        await stream(Source(gate, b"late"), client)
        assert client.body == b"late"

    asyncio.run(within(run()))


def test_an_error_before_the_start_is_left_to_the_plain_answer() -> None:
    async def run() -> list[Message]:
        client = Client()
        with pytest.raises(Unavailable):
            await stream(Source(fails=True), client)
        return client.sent

    assert asyncio.run(run()) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineDied("the engine has ended"), b'"code":503,"message":"the engine has ended"'),
        (ValueError("a secret"), b'"code":500,"message":"an error inside the server'),
    ],
)
def test_an_error_after_the_headers_is_the_last_event(error: Exception, expected: bytes) -> None:
    async def run() -> bytes:
        client = Client()
        await stream(Source(b"one", error, b"never"), client)
        return client.body

    body = asyncio.run(run())

    assert body.startswith(b'onedata: {"error":{' + expected)
    assert body.endswith(b"}}\n\n")


def test_a_silent_stream_is_kept_open_by_pings() -> None:
    async def run() -> bytes:
        gate = asyncio.Event()
        client = Client(lambda body: gate.set() if body == PING else None)
        await stream(Source(gate, b"end"), client, ping_interval_s=0.01)
        return client.body

    assert asyncio.run(within(run())) == PING + b"end"


def test_a_lively_stream_has_no_pings() -> None:
    async def run() -> bytes:
        client = Client()
        await stream(Source(*[b"x"] * 100), client, ping_interval_s=3600)
        return client.body

    assert asyncio.run(run()) == b"x" * 100


def test_a_client_that_leaves_ends_the_work_at_once() -> None:
    async def run() -> None:
        never = asyncio.Event()
        source = Source(b"one", never)
        client = Client(lambda _: client.has_left.set())
        with pytest.raises(ClientLeft):
            await stream(source, client, ping_interval_s=3600)
        assert source.was_left.is_set()

    asyncio.run(within(run()))


def test_nothing_runs_on_after_a_stream() -> None:
    async def run() -> int:
        await stream(Source(b"one"), Client(), ping_interval_s=3600)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1


def test_work_for_a_client_that_stays_is_returned() -> None:
    async def work() -> int:
        return 7

    async def run() -> int:
        return await run_while_connected(Client().receive, work())

    assert asyncio.run(run()) == 7


def test_work_for_a_client_that_leaves_is_cancelled() -> None:
    was_cancelled = False

    async def work() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled = True

    async def run() -> None:
        client = Client()
        client.has_left.set()
        with suppress(ClientLeft):
            await run_while_connected(client.receive, work())

    asyncio.run(within(run()))
    assert was_cancelled

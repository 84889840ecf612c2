"""A cancel reaches the batch it is meant for, however it falls between the loop's steps."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from milepost.engine.connection import Connection, ConnectionClosed
from milepost.libllama.context import AbortFlag
from milepost.protocol.framing import encode_frame, engine_reader, front_end_reader
from milepost.protocol.messages import Cancel, GetStatus, LoadProgress, Message

TIMEOUT_S = 10.0


class Pair:
    """A connection, the flag it sets, and the front end's end of the socket."""

    def __init__(self) -> None:
        self.front_end, theirs = socket.socketpair()
        self.connection = Connection(theirs, front_end_reader())
        self.flag = AbortFlag()
        self.connection.use_abort_flag(self.flag)

    def send(self, *messages: Message) -> None:
        self.front_end.sendall(b"".join(map(encode_frame, messages)))

    def wait_until_read(self) -> None:
        """Return when the reader thread has handled all that was sent before."""
        self.send(GetStatus(status_id=0))
        while self.connection.receive(wait=True)[-1] != GetStatus(status_id=0):
            pass

    def wait_for_flag(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.flag.is_set():
            assert time.monotonic() < deadline, "the flag was not set"
            time.sleep(0.001)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.front_end.close()
    pair.connection.close()


def test_messages_arrive_in_order(pair: Pair) -> None:
    sent = [GetStatus(status_id=number) for number in range(100)]
    pair.send(*sent)
    received: list[Message] = []
    while len(received) < 100:
        received += pair.connection.receive(wait=True)
    assert received == sent
    assert pair.connection.receive(wait=False) == []


def test_what_is_sent_goes_out_with_the_flush(pair: Pair) -> None:
    messages = [LoadProgress(fraction=0.25), LoadProgress(fraction=0.5)]
    for message in messages:
        pair.connection.send(message)
    pair.front_end.setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.front_end.recv(100)
    pair.connection.flush()
    assert list(engine_reader().feed(pair.front_end.recv(1000))) == messages
    pair.connection.flush()


def test_a_cancel_stops_the_running_batch_of_its_request(pair: Pair) -> None:
    pair.connection.allow_abort(7)
    pair.send(Cancel(request_id=7))
    pair.wait_for_flag()
    pair.connection.forbid_abort()
    assert not pair.flag.is_set()
    assert pair.connection.receive(wait=True) == [Cancel(request_id=7)]


def test_a_cancel_of_another_request_stops_nothing(pair: Pair) -> None:
    pair.connection.allow_abort(7)
    pair.send(Cancel(request_id=8))
    pair.wait_until_read()
    assert not pair.flag.is_set()


def test_a_cancel_after_the_batch_does_not_stop_the_next_one(pair: Pair) -> None:
    pair.connection.allow_abort(7)
    pair.connection.forbid_abort()
    pair.send(Cancel(request_id=7))
    pair.wait_until_read()
    pair.connection.allow_abort(8)
    assert not pair.flag.is_set()


def test_a_cancel_that_the_loop_has_not_seen_yet_stops_the_batch_to_come(pair: Pair) -> None:
    pair.send(Cancel(request_id=7), GetStatus(status_id=1))
    deadline = time.monotonic() + TIMEOUT_S
    while not pair.flag.is_set():  # the reader thread may need a moment
        pair.connection.forbid_abort()
        pair.connection.allow_abort(7)
        assert time.monotonic() < deadline
    pair.connection.forbid_abort()

    pair.wait_until_read()
    pair.connection.allow_abort(7)
    assert not pair.flag.is_set()  # the loop has seen it now


def test_the_end_of_the_stream_comes_after_what_was_sent(pair: Pair) -> None:
    pair.send(GetStatus(status_id=1))
    assert pair.connection.receive(wait=True) == [GetStatus(status_id=1)]
    pair.front_end.close()
    with pytest.raises(ConnectionClosed):
        pair.connection.receive(wait=True)


def test_the_end_of_the_stream_stops_the_running_batch_and_those_to_come(pair: Pair) -> None:
    pair.connection.allow_abort(7)
    pair.front_end.close()
    pair.wait_for_flag()
    pair.connection.forbid_abort()
    pair.connection.allow_abort(8)
    assert pair.flag.is_set()


def test_a_stream_that_is_no_protocol_is_the_end(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.front_end.sendall(b"\x04\x00\x00\x00oops")
    with pytest.raises(ConnectionClosed):
        pair.connection.receive(wait=True)
    assert "a frame of 4 bytes is not a message" in caplog.text


def test_writing_to_a_front_end_that_is_gone(pair: Pair) -> None:
    pair.front_end.close()
    pair.connection.send(LoadProgress(fraction=0.5))
    with pytest.raises(ConnectionClosed):
        pair.connection.flush()

"""Frames survive every cut of the stream; what is no message is refused with a sentence."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.requests import make_generate

from milepost.errors import ProtocolError
from milepost.protocol.framing import (
    HEADER,
    MAX_FRAME_BYTES,
    encode_frame,
    engine_reader,
    frame_parts,
    front_end_reader,
)
from milepost.protocol.messages import (
    Cancel,
    Delta,
    GetStatus,
    LoadProgress,
    MediaData,
    Message,
    Shutdown,
)
from milepost.protocol.sampling import SamplingParams

MESSAGES: tuple[Message, ...] = (
    make_generate(7, [1], sampling=SamplingParams(seed=3), stop=("é",)),
    Cancel(request_id=7),
    GetStatus(status_id=1),
    Shutdown(),
)
STREAM = b"".join(map(encode_frame, MESSAGES))


def frame(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


def test_every_cut_in_two_gives_the_same_messages() -> None:
    for cut in range(len(STREAM) + 1):
        reader = front_end_reader()
        assert (*reader.feed(STREAM[:cut]), *reader.feed(STREAM[cut:])) == MESSAGES


def test_byte_by_byte() -> None:
    reader = front_end_reader()
    assert tuple(m for byte in STREAM for m in reader.feed(bytes([byte]))) == MESSAGES


def test_random_cuts_of_a_long_stream() -> None:
    randoms = random.Random(5)
    sent = [
        Delta(request_id=i, text="x" * randoms.randint(0, 300), tokens=(i,)) for i in range(200)
    ]
    stream = b"".join(map(encode_frame, sent))
    reader, start = engine_reader(), 0
    received: list[Message] = []
    while start < len(stream):
        end = start + randoms.randint(1, 2000)
        received += reader.feed(stream[start:end])
        start = end
    assert received == sent


def test_a_message_comes_as_soon_as_it_is_complete() -> None:
    reader = engine_reader()
    data = encode_frame(LoadProgress(fraction=0.5))
    assert list(reader.feed(data[:-1])) == []
    assert list(reader.feed(data[-1:] + data[:2])) == [LoadProgress(fraction=0.5)]


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(ProtocolError, match=f"{MAX_FRAME_BYTES + 1} bytes is over the limit"):
        list(front_end_reader().feed(HEADER.pack(MAX_FRAME_BYTES + 1)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",  # a byte that msgpack never uses
        b"GET / HTTP/1.1",
        msgspec.msgpack.encode({"type": "Explode"}),
        msgspec.msgpack.encode({"request_id": 1}),
        msgspec.msgpack.encode({"type": "Cancel"}),
        msgspec.msgpack.encode({"type": "Cancel", "request_id": "one"}),
        msgspec.msgpack.encode({"type": "Delta", "request_id": 1, "text": "", "tokens": []}),
        encode_frame(Shutdown())[HEADER.size : -1],
        b"\x82\xa4type\xa8Shutdown\xa1x" + b"\x91" * 100_000,  # nested without an end
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {len(payload)} bytes is not a message"):
        list(front_end_reader().feed(frame(payload)))


def test_random_damage_is_a_message_or_refused() -> None:
    randoms = random.Random(9)
    good = bytearray(encode_frame(MESSAGES[0]))
    num_refused = 0
    for _ in range(3000):
        damaged = bytearray(good)
        for _ in range(randoms.randint(1, 4)):
            damaged[randoms.randrange(HEADER.size, len(good))] = randoms.randrange(256)
        try:
            list(front_end_reader().feed(bytes(damaged)))
        except ProtocolError:
            num_refused += 1
    assert num_refused > 2000


def test_fields_of_a_newer_version_are_ignored() -> None:
    payload = msgspec.msgpack.encode({"type": "Cancel", "request_id": 5, "why": "tired"})
    assert list(front_end_reader().feed(frame(payload))) == [Cancel(request_id=5)]


@pytest.mark.parametrize("num_bytes", [0, 1, 255, 256, 70_000])
def test_the_content_of_media_is_not_copied_into_its_frame(num_bytes: int) -> None:
    data = random.Random(num_bytes).randbytes(num_bytes)
    message = MediaData(key=b"k" * 32, data=data)
    parts = frame_parts(message)
    assert parts[-1] is data
    assert list(front_end_reader().feed(b"".join(parts))) == [message]


def test_the_frame_of_any_other_message_is_in_one_part() -> None:
    assert [frame_parts(message) for message in MESSAGES] == [
        (encode_frame(message),) for message in MESSAGES
    ]

"""Frames on the socket between front end and engine: a length, then one msgpack message.

    ┌──────────────────────────┬─────────────────────────┐
    │ length: u32 little-endian │ msgpack, `length` bytes │
    └──────────────────────────┴─────────────────────────┘

Pure: bytes in, messages out. The callers own the sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from milepost.errors import ProtocolError
from milepost.protocol.messages import FromEngine, MediaData, Message, ToEngine

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 30  # arbitrary; a prompt of 10 million tokens has 40 MB
# msgpack's binary data: none, and any number of bytes.
EMPTY_BINARY = b"\xc4\x00"
BINARY_HEAD = struct.Struct(">BI")
BINARY_32 = 0xC6

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: Message) -> bytes:
    """Return one message as a frame."""
    payload = _encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def frame_parts(message: Message) -> tuple[bytes, ...]:
    """Return one message as a frame in parts, of which the content of media is one: no copy."""
    if not isinstance(message, MediaData):
        return (encode_frame(message),)
    empty = _encoder.encode(msgspec.structs.replace(message, data=b""))
    assert empty.endswith(EMPTY_BINARY), "the data of a MediaData is its last field"
    num_bytes = len(message.data)
    head = empty.removesuffix(EMPTY_BINARY) + BINARY_HEAD.pack(BINARY_32, num_bytes)
    return (HEADER.pack(len(head) + num_bytes) + head, message.data)


class FrameReader(Generic[T]):
    """Cuts a byte stream into messages; keeps an incomplete frame for the next call."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """Take bytes as they arrive and yield each message that they complete.

        Raises ProtocolError when the stream cannot be understood; it is then useless.
        """
        self._buffer += data
        start = 0
        while (end := self._frame_end(start)) is not None:
            payload = memoryview(self._buffer)[start + HEADER.size : end]
            try:
                message = self._decoder.decode(payload)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ProtocolError(
                    f"a frame of {len(payload)} bytes is not a message: {error}"
                ) from error
            finally:
                payload.release()
            yield message
            start = end
        del self._buffer[:start]

    def _frame_end(self, start: int) -> int | None:
        if len(self._buffer) < start + HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer, start)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {length} bytes is over the limit {MAX_FRAME_BYTES}")
        end = start + HEADER.size + int(length)
        return end if len(self._buffer) >= end else None


def engine_reader() -> FrameReader[FromEngine]:
    """Return a reader for what an engine process sends."""
    return FrameReader(msgspec.msgpack.Decoder(FromEngine))


def front_end_reader() -> FrameReader[ToEngine]:
    """Return a reader for what the front end sends."""
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))

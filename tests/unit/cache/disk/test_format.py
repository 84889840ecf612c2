"""The bytes of a blob file: fixed for ever, and every damage is seen."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib

import numpy as np
import pytest

from milepost.cache.disk.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    BlobHeader,
    BlobKind,
    encode_header,
    encode_tokens,
    history_checksum,
    is_newer_format,
    parse_header,
    parse_tokens,
    payload_checksum,
)
from milepost.errors import StoredStateLost

HEADER = BlobHeader(
    id=0x0123456789ABCDEF,
    kind="checkpoint",
    name="system_end",
    start=0,
    end=3,
    num_bytes=5,
    written_s=1_800_000_000,
    fingerprint=bytes(range(16)),
    history=b"h" * 16,
    checksum=b"p" * 16,
)


def test_a_header_has_the_documented_bytes() -> None:
    fields = (
        b"MILEPOST\x02\x00\x02\x00\x80\x00\x00\x00\xef\xcd\xab\x89\x67\x45\x23\x01"
        b"\x00\x00\x00\x00\x03\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00"
        b"\x00\xd2\x49\x6b\x00\x00\x00\x00system_end\0\0\0\0\0\0"
        + bytes(range(16))
        + b"h" * 16
        + b"p" * 16
    )
    assert encode_header(HEADER) == fields + hashlib.sha256(fields).digest()[:16]
    assert len(encode_header(HEADER)) == HEADER_BYTES


@pytest.mark.parametrize("kind", ["segment", "checkpoint", "logits"])
def test_a_header_comes_back(kind: BlobKind) -> None:
    header = dataclasses.replace(HEADER, kind=kind, name="", start=1)
    assert parse_header(encode_header(header)) == header


@pytest.mark.parametrize("bit", range(0, HEADER_BYTES * 8, 7))
def test_a_flipped_bit_of_the_header_is_found(bit: int) -> None:
    data = bytearray(encode_header(HEADER))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoredStateLost):
        parse_header(bytes(data))


@pytest.mark.parametrize("num_bytes", [0, 7, 127])
def test_a_cut_header_is_found(num_bytes: int) -> None:
    with pytest.raises(StoredStateLost, match="not a file of the disk cache"):
        parse_header(encode_header(HEADER)[:num_bytes])


def test_a_newer_format_is_told_from_damage() -> None:
    data = bytearray(encode_header(HEADER))
    assert not is_newer_format(bytes(data))
    data[8] = 3
    assert is_newer_format(bytes(data))
    with pytest.raises(StoredStateLost, match="it has format 3, .* reads those up to 2"):
        parse_header(bytes(data))
    assert not is_newer_format(b"something else")
    assert not is_newer_format(b"")


def test_tokens_are_int32_little_endian() -> None:
    tokens = np.array([1, -2, 150_000], np.int32)
    assert encode_tokens(tokens) == b"\x01\0\0\0\xfe\xff\xff\xff\xf0\x49\x02\0"
    assert parse_tokens(encode_tokens(tokens)).tolist() == [1, -2, 150_000]
    assert encode_tokens(np.array([1, 9, -2, 9, 150_000, 9])[::2]) == encode_tokens(tokens)
    assert history_checksum(b"ab") == hashlib.sha256(b"ab").digest()[:16]


def test_an_older_format_is_told_by_its_header() -> None:
    header = dataclasses.replace(HEADER, version=1)
    assert encode_header(header)[8] == 1
    assert parse_header(encode_header(header)) == header


@pytest.mark.parametrize("version", [1, 2])
def test_a_payload_is_checked_in_blocks(version: int) -> None:
    data = bytes(BLOCK_BYTES) + b"rest"
    blocks = {
        1: hashlib.sha256(data[:BLOCK_BYTES]).digest() + hashlib.sha256(b"rest").digest(),
        2: b"\x1c\xea\x38\xa7" + zlib.crc32(b"rest").to_bytes(4, "little"),
    }
    checksum = hashlib.sha256(blocks[version]).digest()[:16]
    assert payload_checksum(memoryview(data), version) == checksum


def test_blocks_that_change_places_are_found() -> None:
    data = bytes(BLOCK_BYTES) + b"rest"
    assert payload_checksum(memoryview(b"rest" + bytes(BLOCK_BYTES))) != payload_checksum(
        memoryview(data)
    )

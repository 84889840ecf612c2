"""The bytes of a blob file, and how they are checked. Opens no file; `docs/disk-format.md` has it.

    0        128                128 + 4 * end
    | header | tokens [0, end)  | payload: the bytes of a segment or checkpoint, or logits |

Each file tells which history it belongs to, so that a lost index costs nothing but the time to read
the fronts of the files. The price is 4 bytes a token: below 2 % of the smallest states.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from milepost.cache.segment import Data
from milepost.cache.tree import Tokens
from milepost.errors import StoredStateLost

MAGIC = b"MILEPOST"
FORMAT_VERSION = 2
HEADER_BYTES = 128
TOKEN_BYTES = 4
# Blocks are checked side by side, each while it is in the processor's cache. Of 0.25 to 4 MiB all
# were within 5 % (measured).
BLOCK_BYTES = 1 << 20
CHECKSUM_BYTES = 16
MAX_NAME_BYTES = 16

BlobKind = Literal["segment", "checkpoint", "logits"]
KIND_CODES: dict[BlobKind, int] = {"segment": 1, "checkpoint": 2, "logits": 3}
KINDS: dict[int, BlobKind] = {code: kind for kind, code in KIND_CODES.items()}

_FIELDS = struct.Struct("<8sHHIQIIQq16s16s16s16s")
_START = struct.Struct("<8sH")  # of every version


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """What a file says of itself."""

    id: int  # random, 63 bits; the file is named after it
    kind: BlobKind
    name: str  # of a checkpoint: why it was kept, in at most 16 ASCII characters
    start: int  # the payload is about [start, end); of a state or logits this is [0, pos)
    end: int
    num_bytes: int  # of the payload
    written_s: int  # seconds since 1970
    fingerprint: bytes
    history: bytes  # checksum of the tokens
    checksum: bytes  # of the payload
    version: int = FORMAT_VERSION  # of the format: says how the payload is checked

    @property
    def file_bytes(self) -> int:
        """The length of the file."""
        return file_bytes(self.end, self.num_bytes)


def file_bytes(end: int, num_bytes: int) -> int:
    """Return the length of the file of a history of `end` tokens and a payload."""
    return HEADER_BYTES + TOKEN_BYTES * end + num_bytes


def encode_header(header: BlobHeader) -> bytes:
    """Return the first bytes of a file."""
    name = header.name.encode("ascii")
    assert len(name) <= MAX_NAME_BYTES
    assert 0 <= header.start < header.end
    fields = _FIELDS.pack(
        MAGIC,
        header.version,
        KIND_CODES[header.kind],
        HEADER_BYTES,
        header.id,
        header.start,
        header.end,
        header.num_bytes,
        header.written_s,
        name,
        header.fingerprint,
        header.history,
        header.checksum,
    )
    return fields + _digest(fields)


def parse_header(data: bytes) -> BlobHeader:
    """Return what the first bytes of a file say.

    Raises:
        StoredStateLost: they are damaged, or of another format.
    """
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise StoredStateLost("it is not a file of the disk cache")
    _, version = _START.unpack_from(data)
    if not 1 <= version <= FORMAT_VERSION:
        raise StoredStateLost(
            f"it has format {version}, and this program reads those up to {FORMAT_VERSION}"
        )
    fields = data[: _FIELDS.size]
    if _digest(fields) != data[_FIELDS.size : HEADER_BYTES]:
        raise StoredStateLost("its header is damaged")
    _, _, kind, _, blob_id, start, end, num_bytes, written_s, name, *sums = _FIELDS.unpack(fields)
    if kind not in KINDS:
        raise StoredStateLost(f"it is of kind {kind}, which this program does not know")
    if not 0 <= start < end:
        raise StoredStateLost(f"it says that it goes from {start} to {end} of a history")
    return BlobHeader(
        id=blob_id,
        kind=KINDS[kind],
        name=name.rstrip(b"\0").decode("ascii", errors="replace"),
        start=start,
        end=end,
        num_bytes=num_bytes,
        written_s=written_s,
        fingerprint=sums[0],
        history=sums[1],
        checksum=sums[2],
        version=version,
    )


def is_newer_format(data: bytes) -> bool:
    """Return whether these first bytes are of a version after this one: not ours to judge."""
    if len(data) < _START.size:
        return False
    magic, version = _START.unpack_from(data)
    return bool(magic == MAGIC and version > FORMAT_VERSION)


def encode_tokens(tokens: Tokens) -> bytes:
    """Return tokens as the files and the index hold them."""
    return np.ascontiguousarray(tokens, dtype="<i4").tobytes()


def parse_tokens(data: Data) -> Tokens:
    """Return the tokens of their bytes, without a copy where the machine is little-endian."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def history_checksum(tokens: bytes) -> bytes:
    """Return the name of a history: the checksum of its encoded tokens."""
    return _digest(tokens)


def iterate_blocks(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a payload that are checked on their own."""
    for start in range(0, num_bytes, BLOCK_BYTES):
        yield start, min(start + BLOCK_BYTES, num_bytes)


def block_checksum(block: Data, version: int = FORMAT_VERSION) -> bytes:
    """Return the checksum of one block, as a format has it.

    CRC-32 finds every flip of one or two bits and every burst of up to 32, and misses one of 2^32
    other damages. What it is for is a disk or memory that fails, and not somebody who may write
    here. SHA-256, of format 1, was most of the time of a read from the page cache: 1.5 GB/s on one
    core with SHA instructions, against 2.6 (measured; BLAKE2b 0.7).
    """
    if version == 1:
        return hashlib.sha256(block, usedforsecurity=False).digest()
    return zlib.crc32(block).to_bytes(4, "little")


def join_checksums(checksums: list[bytes]) -> bytes:
    """Return the checksum of a payload from those of its blocks, in their order."""
    return _digest(b"".join(checksums))


def payload_checksum(payload: memoryview, version: int = FORMAT_VERSION) -> bytes:
    """Return the checksum of a payload; a thread of its own lets others run meanwhile."""
    ranges = iterate_blocks(payload.nbytes)
    return join_checksums([block_checksum(payload[start:end], version) for start, end in ranges])


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data, usedforsecurity=False).digest()[:CHECKSUM_BYTES]

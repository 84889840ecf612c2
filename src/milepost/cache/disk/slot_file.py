"""A file that holds one sequence as a whole: what `POST /slots/{id}?action=save` writes.

It has the bytes of a blob file (`docs/disk-format.md`), with the whole state as its payload, and is
nothing of the disk cache: its name and its end are the user's.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import numpy as np

from milepost.cache.disk.blob_files import FILE_MODE, TEMP_SUFFIX
from milepost.cache.disk.format import (
    HEADER_BYTES,
    TOKEN_BYTES,
    BlobHeader,
    encode_header,
    encode_tokens,
    history_checksum,
    parse_header,
    parse_tokens,
    payload_checksum,
)
from milepost.cache.segment import Data
from milepost.cache.tree import Tokens
from milepost.errors import StoredStateLost

NAME = "slot"


def write_slot_file(
    path: Path, tokens: Tokens, payload: Data, fingerprint: bytes, now_s: float
) -> int:
    """Write a sequence, in place of an earlier file; return the length of the file.

    Raises:
        OSError: it cannot be written; an earlier file is still there.
    """
    history, view = encode_tokens(tokens), memoryview(payload)
    header = BlobHeader(
        id=secrets.randbits(63),
        kind="checkpoint",
        name=NAME,
        start=0,
        end=len(tokens),
        num_bytes=view.nbytes,
        written_s=int(now_s),
        fingerprint=fingerprint,
        history=history_checksum(history),
        checksum=payload_checksum(view),
    )
    temporary = path.with_name(path.name + TEMP_SUFFIX)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        with open(descriptor, "wb") as file:
            for piece in (encode_header(header), history, view):
                file.write(piece)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return header.file_bytes


def read_slot_file(path: Path, fingerprint: bytes) -> tuple[Tokens, np.ndarray]:
    """Return the tokens of a sequence, and its whole state as uint8, every byte checked.

    Raises:
        OSError: it cannot be read.
        StoredStateLost: it is damaged, no such file, or of another model.
    """
    data = np.fromfile(path, np.uint8)
    view = data.data
    header = parse_header(bytes(view[:HEADER_BYTES]))
    if header.name != NAME:
        raise StoredStateLost("it does not hold a whole slot")
    if header.fingerprint != fingerprint:
        raise StoredStateLost("it was written for another model, or with other settings of it")
    middle = HEADER_BYTES + TOKEN_BYTES * header.end
    history, payload = view[HEADER_BYTES:middle], view[middle:]
    is_whole = len(data) == header.file_bytes
    if not (
        is_whole
        and history_checksum(bytes(history)) == header.history
        and payload_checksum(payload, header.version) == header.checksum
    ):
        raise StoredStateLost("it is damaged")
    return parse_tokens(history), data[middle:]

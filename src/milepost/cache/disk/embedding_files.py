"""Embeddings of media on disk: what a projector made of an image, so that no later run encodes it.

    media/<64 hexadecimal digits>       a file, named by what its values depend on
    media/<...>.<process>.tmp           the same while it is being written

    ┌──────────────┬───────────────────────┬────────────┬────────────┬───────────┬──────────────┐
    │ "MPEMBED1"   │ SHA-256 of what follows│ width: u32 │ blocks: u32│ rows: u32…│ float32 …    │
    │ 8 bytes      │ 32 bytes              │            │            │ of each   │ row by row   │
    └──────────────┴───────────────────────┴────────────┴────────────┴───────────┴──────────────┘

All numbers are little-endian. A file that is damaged is a miss, and removed. Used by one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from milepost.cache.disk.blob_files import FILE_MODE, make_folder

MAGIC = b"MPEMBED1"
CHECKSUM_BYTES = 32
SIZES = struct.Struct("<II")
VALUES = np.dtype("<f4")
NUM_NAME_DIGITS = 64
MEDIA_FOLDER = "media"  # in the folder of a fingerprint

logger = logging.getLogger(__name__)

Embeddings = list[np.ndarray]  # float32 of shape (rows, width), of each block of a media item


class EmbeddingFiles:
    """Owns the files in one folder, up to a number of bytes; the least recently used go first."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def read_embeddings(self, key: bytes) -> Embeddings | None:
        """Return the embeddings of a key of 32 bytes, None if they are not there or damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):  # it may be read, and not written
            os.utime(path)
        found = decode_embeddings(data)
        if found is None:
            logger.warning("%s is damaged, and removed", path)
            _remove(path)
        return found

    def write_embeddings(self, key: bytes, embeddings: Sequence[np.ndarray]) -> None:
        """Store embeddings; a disk that does not take them is logged, and nothing is stored."""
        data = encode_embeddings(embeddings)
        if len(data) > self._max_bytes:
            return
        path = self._path(key)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            make_folder(self._folder)
            self._make_room(len(data))
            temporary.touch(FILE_MODE)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            logger.warning("the embeddings of a media item are not on disk: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove all files, what a crash left of one included."""
        clear_embeddings(self._folder)

    def _make_room(self, num_bytes: int) -> None:
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) + num_bytes - self._max_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size

    def _path(self, key: bytes) -> Path:
        return self._folder / key.hex()


def clear_embeddings(folder: Path) -> None:
    """Remove all embeddings in a folder; one that is not there is empty.

    What cannot be removed is logged, and stays.
    """
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s cannot be read, and is not emptied: %s", folder, error)
        return
    for path in paths:
        _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error)


def encode_embeddings(embeddings: Sequence[np.ndarray]) -> bytes:
    """Return the bytes of a file."""
    width = embeddings[0].shape[1] if embeddings else 0
    rows = np.array([len(block) for block in embeddings], "<u4")
    body = [SIZES.pack(width, len(embeddings)), rows.tobytes()]
    body += [np.ascontiguousarray(block, VALUES).tobytes() for block in embeddings]
    content = b"".join(body)
    return MAGIC + hashlib.sha256(content, usedforsecurity=False).digest() + content


def decode_embeddings(data: bytes) -> Embeddings | None:
    """Return the embeddings in a file; None unless it is whole."""
    start = len(MAGIC) + CHECKSUM_BYTES
    content = memoryview(data)[start:]
    checksum = hashlib.sha256(content, usedforsecurity=False).digest()
    if not data.startswith(MAGIC) or data[len(MAGIC) : start] != checksum:
        return None
    width, num_blocks = SIZES.unpack_from(content)
    rows = np.frombuffer(content, "<u4", num_blocks, SIZES.size)
    values = np.frombuffer(content, VALUES, offset=SIZES.size + rows.nbytes).reshape(-1, width)
    return [block.copy() for block in np.split(values, np.cumsum(rows)[:-1])]

"""Reading payloads: every byte is checked before anybody sees it.

A payload is read into fresh memory, not mapped: what was checked is then what is used (a mapped
page may be read again later), and a file that is cut off meanwhile cannot kill the process.
Reading and checking block by block, several at once, is about as fast as a mapping with the same
check (measured: `benchmarks/disk_store.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from milepost.cache.disk.blob_files import BlobFiles
from milepost.cache.disk.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    block_checksum,
    file_bytes,
    iterate_blocks,
    join_checksums,
    parse_header,
)
from milepost.cache.disk.stored_forest import StoredBlob
from milepost.errors import StoredStateLost

NUM_THREADS = 4
# Below this, handing blocks to other threads costs more than it brings. Arbitrary.
MIN_SHARED_BYTES = 4 * BLOCK_BYTES

Block = tuple[int, int]
CarryOut = Callable[[Callable[[Block], bytes], Iterable[Block]], Iterable[bytes]]


class BlobReader:
    """Reads blobs when asked, or ahead of that on threads of its own."""

    def __init__(self, files: BlobFiles, max_prefetch_bytes: int) -> None:
        self._files = files
        self._max_prefetch_bytes = max_prefetch_bytes
        self._pool = ThreadPoolExecutor(NUM_THREADS, "disk-reader")
        self._prefetched: dict[int, Future[memoryview]] = {}

    def read(self, blob: StoredBlob) -> memoryview:
        """Return a payload.

        Raises:
            StoredStateLost: the file is damaged.
            OSError: it cannot be read.
        """
        future = self._prefetched.pop(blob.id, None)
        if future is not None and not future.cancel():
            return future.result()
        carry_out: CarryOut = self._pool.map if blob.num_bytes >= MIN_SHARED_BYTES else map
        return read_payload(self._files.path_of(blob.id), blob, carry_out)

    def is_prefetched(self, blob_id: int) -> bool:
        """Return whether a read of it has been begun."""
        return blob_id in self._prefetched

    def prefetch(self, blobs: Iterable[StoredBlob]) -> None:
        """Begin to read these, up to the limit; what was read ahead besides them is dropped."""
        wanted, total = {}, 0
        for blob in blobs:
            total += blob.num_bytes
            if total > self._max_prefetch_bytes:
                break
            wanted[blob.id] = blob
        for blob_id in self._prefetched.keys() - wanted.keys():
            self._prefetched.pop(blob_id).cancel()
        for blob in wanted.values():
            if blob.id not in self._prefetched:
                path = self._files.path_of(blob.id)
                self._prefetched[blob.id] = self._pool.submit(read_payload, path, blob)

    def close(self) -> None:
        """End the threads."""
        self._prefetched.clear()
        self._pool.shutdown(cancel_futures=True)


def read_payload(path: Path, blob: StoredBlob, carry_out: CarryOut = map) -> memoryview:
    """Return the payload of a file; raises as `BlobReader.read`."""
    with path.open("rb", buffering=0) as file:
        version = _check_front(file, blob)
        _announce(file)
    payload = np.empty(blob.num_bytes, np.uint8).data
    offset = file_bytes(blob.end, 0)

    def read_block(block: Block) -> bytes:
        start, end = block
        with path.open("rb", buffering=0) as file:  # a position of its own; 15 us of about 700
            file.seek(offset + start)
            _read_all(file, payload[start:end])
        return block_checksum(payload[start:end], version)

    checksums = list(carry_out(read_block, iterate_blocks(blob.num_bytes)))
    if join_checksums(checksums) != blob.checksum:
        raise StoredStateLost(f"the payload of {path.name} is damaged")
    return payload


def is_lost(error: OSError) -> bool:
    """Return whether a file is gone or unreadable for good, and not just now."""
    return error.errno in (errno.ENOENT, errno.EIO, errno.ENOTDIR, errno.EISDIR)


def _check_front(file: BinaryIO, blob: StoredBlob) -> int:
    """Return the version of the format of a file that is the one that the index knows."""
    header = parse_header(file.read(HEADER_BYTES))
    expected = (blob.id, blob.kind, blob.start, blob.end, blob.history, blob.checksum)
    found = (header.id, header.kind, header.start, header.end, header.history, header.checksum)
    size = os.fstat(file.fileno()).st_size
    if found != expected or size != blob.file_bytes:
        raise StoredStateLost(f"the file {blob.id:016x} is not the one that the index knows")
    return header.version


def _announce(file: BinaryIO) -> None:
    """Let the system read the whole file in one go, where it can."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _read_all(file: BinaryIO, target: memoryview) -> None:
    while target:
        num_bytes = file.readinto(target)  # type: ignore[attr-defined]
        if not num_bytes:
            raise StoredStateLost("the file is cut off")
        target = target[num_bytes:]

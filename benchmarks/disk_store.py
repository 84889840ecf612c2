"""How fast the disk store opens, loads, writes and reads, beside the same bytes read plainly.

    python -m benchmarks.disk_store --folder FOLDER

Files come from the page cache, so that the disk does not hide what checking costs.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.disk_cache import FINGERPRINT, open_store

from benchmarks.report import describe_run
from milepost.cache.disk.admin import opened
from milepost.cache.disk.blob_reader import read_payload
from milepost.cache.disk.format import (
    BlobHeader,
    block_checksum,
    encode_tokens,
    history_checksum,
    iterate_blocks,
    payload_checksum,
)
from milepost.cache.disk.index import Index
from milepost.cache.disk.store import DiskStore
from milepost.cache.disk.stored_forest import StoredBlob
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.traits import CacheLimits, CacheTraits

NUM_CONVERSATIONS = 100
TURNS = 100
TOKENS_PER_TURN = 300
SIZES_MIB = (1, 16, 150)
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write [default: a temporary one]")
    parser.add_argument("--json", type=Path, help="write the numbers to a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        results = {
            **describe_run(),
            "checksums_mb_per_s": measure_checksums(),
            "index": measure_index(Path(folder) / "index"),
            "files": [measure_files(Path(folder) / f"{mib}", mib) for mib in SIZES_MIB],
        }
    text = json.dumps(results, indent=1, default=str)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def measure_checksums() -> dict[str, float]:
    """Return the speed of some checksums on one core."""
    data = np.random.default_rng(0).bytes(64 << 20)
    ways: dict[str, Callable[[], object]] = {
        "crc32 in blocks": lambda: payload_checksum(memoryview(data)),
        "sha256 in blocks": lambda: payload_checksum(memoryview(data), 1),
        "blake2b": lambda: hashlib.blake2b(data, digest_size=16).digest(),
    }
    return {name: rate(len(data), way) for name, way in ways.items()}


def measure_index(root: Path) -> dict[str, float]:
    """Return the times until 10,000 runs are known, each with a segment and a checkpoint."""
    store = open_store(root)
    store.close(60.0)
    fill_index(store)
    times = [start_once(root) for _ in range(REPEATS)]
    open_ms, load_ms = zip(*times, strict=True)
    with opened(store.folder) as index:
        forest = index.load()
    return {
        "runs": len(forest.runs),
        "blobs": len(forest.blobs),
        "tokens": forest.runs.num_tokens,
        "open_ms": statistics.median(open_ms),
        "load_and_grow_tree_ms": statistics.median(load_ms),
        "known_ms": statistics.median(map(sum, times)),
        "known_ms_lowest": min(map(sum, times)),
        "known_ms_highest": max(map(sum, times)),
    }


def start_once(root: Path) -> tuple[float, float]:
    """Return the milliseconds to open the folder, and then to know all that is in it."""
    cache = PrefixCache(CacheTraits.of_kind("hybrid"), CacheLimits(budget_bytes=1 << 30))
    gc.collect()
    gc.disable()  # as the engine does
    began_s = time.perf_counter()
    store = open_store(root)
    opened_s = time.perf_counter()
    loaded = cache.attach_disk(store, 0.0)
    ended_s = time.perf_counter()
    gc.enable()
    assert loaded.num_useless == 0
    store.close(60.0)
    return 1e3 * (opened_s - began_s), 1e3 * (ended_s - opened_s)


def fill_index(store: DiskStore) -> None:
    """Add rows and, so that opening finds nothing amiss, empty files for them."""
    index = Index.open(store.folder / "index.sqlite")
    random = np.random.default_rng(1)
    with index.transaction():
        for conversation in range(NUM_CONVERSATIONS):
            tokens = random.integers(0, 150_000, TURNS * TOKENS_PER_TURN).astype(np.int32)
            for end in range(TOKENS_PER_TURN, len(tokens) + 1, TOKENS_PER_TURN):
                add_rows(index, store, tokens[:end], conversation)
    index.close()


def add_rows(index: Index, store: DiskStore, tokens: np.ndarray, seed: int) -> None:
    run = index.add_run(tokens)
    history = history_checksum(encode_tokens(tokens))
    for kind, start in (("segment", len(tokens) - TOKENS_PER_TURN), ("checkpoint", 0)):
        blob_id = int.from_bytes(hashlib.sha256(history + kind.encode()).digest()[:7])
        header = BlobHeader(
            id=blob_id,
            kind=kind,  # type: ignore[arg-type]
            name="chunk",
            start=start,
            end=len(tokens),
            num_bytes=1 << 20,
            written_s=seed,
            fingerprint=FINGERPRINT.key,
            history=history,
            checksum=history,
        )
        index.add_blob(header, run, 0.0)
        path = store._folder.files.path_of(blob_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def measure_files(root: Path, mib: int) -> dict[str, float]:
    """Return the speeds of one size, in MB/s."""
    store = open_store(root)
    data = np.random.default_rng(2).bytes(mib << 20)
    began_s = time.perf_counter()
    store.put_checkpoint(np.arange(30_000, dtype=np.int32), "chunk", data)
    store.flush(600.0)
    written_s = time.perf_counter() - began_s
    (completion,) = store.take_completions()
    assert completion.blob is not None
    blob, path = completion.blob, store._folder.files.path_of(completion.blob.id)
    results = {
        "mib": mib,
        "write": len(data) / written_s / 1e6,
        "read, checked": rate(len(data), lambda: store.read(blob.id)),
        "read by one thread, checked": rate(len(data), lambda: read_payload(path, blob)),
        "mapped, checked": rate(len(data), lambda: read_mapped(path, blob)),
        "read plainly": rate(len(data), lambda: read_plainly(path, blob)),
    }
    store.close(60.0)
    return results


def read_plainly(path: Path, blob: StoredBlob) -> np.ndarray:
    payload = np.empty(blob.num_bytes, np.uint8)
    with path.open("rb", buffering=0) as file:
        file.seek(blob.file_bytes - blob.num_bytes)
        file.readinto(payload.data)
    return payload


def read_mapped(path: Path, blob: StoredBlob) -> bytes:
    """Check a mapping and copy it, as the native library would."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        payload = memoryview(mapping)[blob.file_bytes - blob.num_bytes :]
        for start, end in iterate_blocks(blob.num_bytes):
            block_checksum(payload[start:end])
        copy = bytes(payload)
        payload.release()
    return copy


def rate(num_bytes: int, work: Callable[[], object]) -> float:
    """Return the median speed of some work in MB/s."""
    times = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return round(num_bytes / statistics.median(times) / 1e6, 1)


if __name__ == "__main__":
    main()

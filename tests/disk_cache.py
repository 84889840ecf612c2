"""A disk cache for tests: a fingerprint, clocks that obey, and payloads that can be told apart."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from milepost.cache.disk.blob_files import OnStep
from milepost.cache.disk.fingerprint import FileIdentity, Fingerprint, RopeSettings
from milepost.cache.disk.limits import DiskClock, DiskLimits
from milepost.cache.disk.store import DiskStore
from milepost.cache.disk.stored_forest import StoredForest
from milepost.cache.disk.watch import Changes
from milepost.cache.disk.writer import Completion
from milepost.cache.tree import Tokens

TIMEOUT_S = 20.0

FINGERPRINT = Fingerprint(
    model_files=(FileIdentity(1000, "aa", "bb"),),
    type_k="f16",
    type_v="f16",
    flash_attention=True,
    full_window=False,
    memory_kind="hybrid",
    rope=RopeSettings("none", 10000.0, 1.0, -1.0, 1.0, 32.0, 1.0, 4096),
    loras=(),
    library_build="b1",
    state_layout_version=1,
)
LIMITS = DiskLimits(budget_bytes=1 << 30, max_volume_share=1.0)


@dataclass
class ManualClock:
    """A wall clock that is set by hand; the steady one is real."""

    now_s: float = 1_800_000_000.0

    def both(self) -> DiskClock:
        return DiskClock(lambda: self.now_s, time.perf_counter)


REAL_CLOCK = DiskClock(time.time, time.perf_counter)


def open_store(
    root: Path,
    clock: DiskClock = REAL_CLOCK,
    on_step: OnStep = lambda step: None,
    fingerprint: Fingerprint = FINGERPRINT,
    **limits: Any,
) -> DiskStore:
    """Open a store; some of its limits may be given."""
    return DiskStore.open(root, fingerprint, dataclasses.replace(LIMITS, **limits), clock, on_step)


def history(num_tokens: int, seed: int = 0) -> Tokens:
    """Return tokens; those of one seed are a prefix of each other."""
    return np.random.default_rng(seed).integers(0, 150_000, num_tokens).astype(np.int32)


def branch(tokens: Tokens, pos: int, num_tokens: int, seed: int = 1) -> Tokens:
    """Return a history that leaves another at a position."""
    rest = history(num_tokens, seed)
    rest[0] = tokens[pos] + 1 if pos < len(tokens) else rest[0]
    return np.concatenate((tokens[:pos], rest))


def payload(num_bytes: int, seed: int = 0) -> bytes:
    """Return bytes that no other seed gives."""
    return np.random.default_rng(seed).bytes(num_bytes)


def finish(store: DiskStore) -> list[Completion]:
    """Wait for the writer, and return what became of all puts."""
    assert store.flush(TIMEOUT_S)
    return store.take_completions()


def blob_paths(store: DiskStore) -> list[Path]:
    """Return the finished files of a store."""
    return sorted(path for path in (store.folder / "blobs").rglob("*") if len(path.name) == 16)


def refresh(store: DiskStore) -> Changes:
    """Return what other processes stored and removed since the last call."""
    store.look_around()
    store.flush(TIMEOUT_S)
    found = store.take_changes()
    removed = [blob_id for changes in found for blob_id in changes.removed]
    return Changes(found[-1].added if found else StoredForest.of_nothing(), removed)

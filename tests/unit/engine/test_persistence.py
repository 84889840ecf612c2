"""Conversations are written when their mode says so, and none is forgotten at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.disk_cache import TIMEOUT_S, history, open_store

from milepost.cache import CacheLimits, CacheTraits, PrefixCache
from milepost.cache.disk.store import DiskStore
from milepost.config import EngineSettings
from milepost.engine.persistence import Persister
from milepost.engine.prompt_logits import PromptLogits
from milepost.kinds import SyncMode


class Bench:
    """A persister of the full memory kind, and a clock that is set by hand."""

    def __init__(self, store: DiskStore, sync: SyncMode, ram_bytes: int = 1 << 20) -> None:
        self.now_s = 100.0
        self.store = store
        self.cache = PrefixCache(CacheTraits.of_kind("full"), CacheLimits(ram_bytes))
        self.cache.attach_disk(store, 0.0)
        self.persister = Persister(self.cache, sync, PromptLogits(), lambda: self.now_s)

    def answer(self, tokens: np.ndarray, num_prompt_tokens: int) -> None:
        start = self.cache.saved_until(tokens)
        self.cache.add_segment(tokens, start, bytes(len(tokens) - start), self.now_s)
        self.persister.note(tokens, num_prompt_tokens)

    def work(self, *, is_idle: bool = True) -> int:
        """Let it work, and return how many blobs there are on disk."""
        self.persister.work(is_idle=is_idle)
        assert self.cache.flush_writes(self.now_s, TIMEOUT_S)
        return self.store.statistics().num_blobs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = open_store(tmp_path)
    yield store
    store.close(TIMEOUT_S)


def test_a_quiet_engine_writes(store: DiskStore) -> None:
    bench = Bench(store, "idle")
    bench.answer(history(200), 190)
    assert bench.work() == 0
    assert bench.persister.wait_s() == pytest.approx(3.0)
    bench.now_s += 2.9
    assert bench.work() == 0
    bench.now_s += 0.2
    assert bench.work() == 1
    assert bench.persister.wait_s() is None


def test_a_busy_engine_writes_what_has_waited_for_long(store: DiskStore) -> None:
    bench = Bench(store, "idle")
    bench.answer(history(200), 190)
    bench.now_s += 30
    assert bench.work(is_idle=False) == 0
    bench.now_s += 31
    assert bench.work(is_idle=False) == 1


def test_each_turn_is_written_where_that_is_wanted(store: DiskStore) -> None:
    bench = Bench(store, "turn")
    bench.answer(history(200), 190)
    assert bench.work(is_idle=False) == 1


def test_nothing_is_written_before_the_end_where_that_is_wanted(tmp_path: Path) -> None:
    bench = Bench(open_store(tmp_path), "exit")
    bench.answer(history(200), 190)
    bench.now_s += 1000
    assert bench.work() == 0
    assert bench.persister.wait_s() is None
    bench.persister.close()
    assert count_blobs(tmp_path) == 1


def test_nothing_is_evicted_for_good_where_memory_is_nearly_full(store: DiskStore) -> None:
    bench = Bench(store, "exit", ram_bytes=4000)
    for seed in range(60):  # of 100 bytes each, with room for 40
        bench.answer(history(100, seed), 90)
        bench.work(is_idle=False)
    found = [bench.cache.saved_until(history(100, seed)) for seed in range(60)]
    assert found == [100] * 60
    assert bench.cache.num_bytes <= 4000


def test_an_earlier_turn_need_not_be_written(store: DiskStore) -> None:
    bench = Bench(store, "idle")
    tokens = history(400)
    other = np.append(tokens[:190], history(50, seed=1)).astype(np.int32)
    bench.answer(tokens[:200], 190)
    bench.answer(other, 230)  # goes on from the prompt with another answer
    bench.now_s += 10
    assert bench.work() == 2  # what it shares with the first, and its own


def test_all_are_written_at_the_end_though_the_queue_is_small(tmp_path: Path) -> None:
    bench = Bench(open_store(tmp_path, max_queue_bytes=250), "exit")
    for seed in range(12):
        bench.answer(history(200, seed), 190)
    bench.persister.close()
    assert count_blobs(tmp_path) == 12


def test_without_a_disk_nothing_happens() -> None:
    persister = Persister(
        PrefixCache(CacheTraits.of_kind("full"), CacheLimits(1 << 20)),
        "turn",
        PromptLogits(),
        lambda: 0.0,
    )
    persister.note(history(100), 90)
    persister.work(is_idle=True)
    assert persister.wait_s() is None
    persister.close()


def test_modes_are_checked() -> None:
    assert msgspec.convert({"cache_disk_sync": "turn"}, EngineSettings).cache_disk_sync == "turn"
    with pytest.raises(msgspec.ValidationError, match="often"):
        msgspec.convert({"cache_disk_sync": "often"}, EngineSettings)


def count_blobs(root: Path) -> int:
    store = open_store(root)
    try:
        return len(store.load().blobs)
    finally:
        store.close(TIMEOUT_S)

"""The store as its owner sees it: puts, completions, reads, limits, another run."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disk_cache import (
    TIMEOUT_S,
    ManualClock,
    blob_paths,
    branch,
    finish,
    history,
    open_store,
    payload,
)

from milepost.cache.disk.store import DiskStore
from milepost.errors import StoredStateLost

MANY_BLOCKS = (9 << 20) + 5


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = open_store(tmp_path)
    yield store
    assert store.close(TIMEOUT_S)


def put(store: DiskStore, num_tokens: int, num_bytes: int = 1000, seed: int = 0) -> int:
    """Store a segment and return its id."""
    store.put_segment(history(num_tokens, seed), 0, payload(num_bytes, seed))
    (completion,) = finish(store)
    assert completion.blob is not None
    return completion.blob.id


@pytest.mark.parametrize("num_bytes", [1, 1000, 1 << 20, MANY_BLOCKS])
def test_what_is_stored_can_be_read(store: DiskStore, num_bytes: int) -> None:
    data = bytearray(payload(num_bytes))
    ticket = store.put_segment(history(50), 10, data)
    (completion,) = finish(store)
    assert completion.ticket == ticket
    assert completion.blob is not None
    assert (completion.blob.kind, completion.blob.start, completion.blob.end) == ("segment", 10, 50)
    assert store.read(completion.blob.id) == data
    store.prefetch([completion.blob.id])
    assert store.read(completion.blob.id) == data
    assert store.statistics().num_prefetched_reads == 1


def test_another_run_knows_all_of_it(tmp_path: Path) -> None:
    tokens, beside = history(100), branch(history(100), 40, 30)
    first = open_store(tmp_path)
    first.put_segment(tokens, 0, b"cells")
    first.put_checkpoint(beside, "system_end", b"state")
    first.pin(tokens[:20], "system_end")
    assert first.close(TIMEOUT_S)
    second = open_store(tmp_path)
    forest = second.load()
    segment, checkpoint = sorted(forest.blobs, key=lambda blob: blob.kind, reverse=True)
    assert forest.runs.history(segment.run, segment.end).tolist() == tokens.tolist()
    assert forest.runs.history(checkpoint.run, checkpoint.end).tolist() == beside.tolist()
    assert (checkpoint.name, checkpoint.start) == ("system_end", 0)
    assert [(pin.pos, pin.kind) for pin in forest.pins] == [(20, "system_end")]
    assert bytes(second.read(segment.id)) == b"cells"
    assert bytes(second.read(checkpoint.id)) == b"state"
    assert second.num_bytes == segment.file_bytes + checkpoint.file_bytes
    second.close(TIMEOUT_S)


def test_the_same_is_stored_once(store: DiskStore) -> None:
    store.put_segment(history(50), 0, b"first")
    store.put_segment(history(50), 0, b"again")
    first, second = finish(store)
    assert first.blob == second.blob
    assert (first.was_known, second.was_known) == (False, True)
    assert len(blob_paths(store)) == 1


def test_files_are_for_the_owner_alone(store: DiskStore) -> None:
    put(store, 50)
    for path in [store.folder, *store.folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_budget_is_never_exceeded(tmp_path: Path) -> None:
    store = open_store(tmp_path, budget_bytes=2000)
    first = put(store, 10)
    store.put_segment(history(10, seed=1), 0, payload(1000))
    (refused,) = finish(store)
    assert (refused.blob, refused.refusal) == (None, "budget")
    store.remove([first])
    put(store, 10, seed=1)
    assert sum(path.stat().st_size for path in blob_paths(store)) <= 2000
    store.close(TIMEOUT_S)


def test_a_day_has_its_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock.both(), max_written_bytes_per_day=2000)
    put(store, 10)
    store.put_segment(history(10, seed=1), 0, payload(1000))
    assert [completion.refusal for completion in finish(store)] == ["write_limit"]
    clock.now_s += 86400
    put(store, 10, seed=1)
    assert store.statistics().writer.written_today_bytes == 1168
    store.close(TIMEOUT_S)


def test_a_full_volume_is_left_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_volume_share=0.0)
    store.put_segment(history(10), 0, b"cells")
    assert [completion.refusal for completion in finish(store)] == ["volume"]
    assert blob_paths(store) == []
    store.close(TIMEOUT_S)


def test_a_full_queue_refuses_and_does_not_wait(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_queue_bytes=1500)
    assert store.put_segment(history(10), 0, bytes(1000)) is not None
    assert store.put_segment(history(11), 0, bytes(1000)) is None
    assert len(finish(store)) == 1
    assert store.put_segment(history(11), 0, bytes(9000)) is not None  # alone it may be larger
    assert store.close(TIMEOUT_S)


def test_what_is_removed_is_gone(store: DiskStore) -> None:
    blob_id = put(store, 50)
    store.remove([blob_id])
    with pytest.raises(StoredStateLost):
        store.read(blob_id)
    finish(store)
    assert blob_paths(store) == []
    assert store.load().blobs == []
    assert store.num_bytes == 0


def test_uses_are_remembered_though_the_clock_goes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock.both())
    blob_id = put(store, 50)
    clock.now_s += 100
    store.touch([blob_id, blob_id])
    finish(store)
    clock.now_s -= 10_000_000
    store.touch([blob_id])
    finish(store)
    (blob,) = store.load().blobs
    assert (blob.num_hits, blob.last_used_s) == (3, 1_800_000_100.0)
    assert store.read(blob_id) == payload(1000)
    store.close(TIMEOUT_S)


def test_a_purge_leaves_no_trace_of_the_conversation(store: DiskStore) -> None:
    tokens = history(200)
    store.put_segment(tokens, 0, b"cells of the conversation")
    finish(store)
    assert store.purge(TIMEOUT_S)
    assert blob_paths(store) == []
    assert store.load().blobs == []
    for path in store.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert tokens[50:60].tobytes() not in data
            assert b"cells of" not in data
    put(store, 50)


def test_tokens_of_what_was_removed_are_overwritten(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    blob_id = put(store, 600)
    store.remove([blob_id])
    assert store.close(TIMEOUT_S)
    assert history(600)[300:310].tobytes() not in (store.folder / "index.sqlite").read_bytes()


def test_prefetching_keeps_to_its_limit(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_prefetch_bytes=1500)
    ids = [put(store, 10, seed=seed) for seed in range(3)]
    store.prefetch([*ids, 12345])
    assert [store.read(blob_id) for blob_id in ids] == [payload(1000, seed) for seed in range(3)]
    assert store.statistics().num_prefetched_reads == 1
    store.prefetch(ids[:1])
    store.prefetch(ids[1:2])  # takes back the first
    for blob_id in ids:
        store.read(blob_id)
    assert store.statistics().num_prefetched_reads == 2
    store.close(TIMEOUT_S)


def test_statistics_count_reads(store: DiskStore) -> None:
    blob_id = put(store, 10, num_bytes=2 << 20)
    store.read(blob_id)
    statistics = store.statistics()
    assert (statistics.num_blobs, statistics.num_reads) == (1, 1)
    assert statistics.read_bytes == 2 << 20
    assert statistics.read_bytes_per_s > 0
    assert statistics.num_bytes == statistics.writer.stored_bytes == (2 << 20) + 168

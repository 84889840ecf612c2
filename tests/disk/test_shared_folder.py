"""Several processes on one folder: each content once, nobody's rows harmed."""

from __future__ import annotations

import fcntl
import multiprocessing
from pathlib import Path

import pytest
from tests.disk_cache import (
    TIMEOUT_S,
    ManualClock,
    blob_paths,
    finish,
    history,
    open_store,
    payload,
    refresh,
)

from milepost.errors import StoredStateLost


def test_what_another_stored_is_found_and_used(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    theirs.put_segment(history(50), 0, payload(1000))
    theirs.put_checkpoint(history(80), "chunk", payload(500))
    finish(theirs)
    changes = refresh(ours)
    assert {blob.end for blob in changes.added.blobs} == {50, 80}
    for blob in changes.added.blobs:
        tokens = changes.added.runs.history(blob.run, blob.end)
        assert tokens.tolist() == history(blob.end).tolist()
        assert ours.read(blob.id) == payload(blob.num_bytes)
    assert refresh(ours).added.blobs == []
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_the_same_content_of_both_is_kept_once(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    for store in (ours, theirs):
        store.put_segment(history(50), 0, payload(1000))
    (first,), (second,) = finish(ours), finish(theirs)
    assert first.blob == second.blob
    assert first.was_known != second.was_known
    assert len(blob_paths(ours)) == 1
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_another_that_is_quicker_wins(tmp_path: Path) -> None:
    theirs = open_store(tmp_path)

    def be_quicker(step: str) -> None:
        if step == "synced":
            theirs.put_segment(history(50), 0, payload(1000))
            finish(theirs)

    ours = open_store(tmp_path, on_step=be_quicker)
    ours.put_segment(history(50), 0, payload(1000, seed=1))
    (completion,) = finish(ours)
    assert completion.was_known
    assert completion.blob is not None
    assert ours.read(completion.blob.id) == payload(1000)
    assert len(blob_paths(ours)) == 1
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_both_together_keep_to_the_budget(tmp_path: Path) -> None:
    theirs = open_store(tmp_path, budget_bytes=2000)

    def fill_it(step: str) -> None:
        if step == "synced":
            theirs.put_segment(history(10, seed=1), 0, payload(1000))
            finish(theirs)

    ours = open_store(tmp_path, on_step=fill_it, budget_bytes=2000)
    ours.put_segment(history(10), 0, payload(1000))
    assert [completion.refusal for completion in finish(ours)] == ["budget"]
    assert len(blob_paths(ours)) == 1
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_what_another_removed_is_a_miss(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    ids = []
    for num_tokens in (50, 60):
        ours.put_segment(history(num_tokens), 0, payload(1000))
        (completion,) = finish(ours)
        assert completion.blob is not None
        ids.append(completion.blob.id)
    theirs.load()
    theirs.remove(ids)
    finish(theirs)
    with pytest.raises(StoredStateLost):
        ours.read(ids[0])
    assert refresh(ours).removed == ids[1:]
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_a_purge_by_another_is_survived(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    ours.put_segment(history(50), 0, payload(1000))
    finish(ours)
    assert theirs.purge(TIMEOUT_S)
    ours.put_segment(history(60), 0, payload(1000))
    (completion,) = finish(ours)
    assert completion.blob is not None
    assert ours.read(completion.blob.id) == payload(1000)
    assert len(refresh(ours).removed) == 1
    ours.close(TIMEOUT_S)
    theirs.close(TIMEOUT_S)


def test_the_sweep_spares_what_a_living_process_writes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close(TIMEOUT_S)
    folder = store.folder / "blobs" / "00"
    folder.mkdir(parents=True)
    for name in ("0" * 16, "0" * 16 + ".tmp"):
        path = folder / name
        with path.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            clock = ManualClock(path.stat().st_mtime + 1e6)
            open_store(tmp_path, clock.both()).close(TIMEOUT_S)
            assert path.exists()
        open_store(tmp_path, clock.both()).close(TIMEOUT_S)
        assert not path.exists()


def write_many(root: Path, number: int) -> None:
    """Store what others store as well, what they do not, and remove some of it."""
    store = open_store(root)
    for seed in range(30):
        store.put_segment(history(40, seed), 0, payload(2000, seed))
        store.put_checkpoint(history(60 + number, seed), "chunk", payload(2000, seed))
        if seed % 10 == number:
            finish(store)
            refresh(store)
            store.remove(list(store._blobs)[:3])
    finish(store)
    assert store.close(TIMEOUT_S)


def test_four_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(tmp_path, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4

    store = open_store(tmp_path)
    forest = store.load()
    contents = [(blob.history, blob.kind, blob.start) for blob in forest.blobs]
    assert len(set(contents)) == len(contents) > 100
    assert len(blob_paths(store)) == len(contents)
    seeds = {history(n, s).tobytes(): s for n in (40, 60, 61, 62, 63) for s in range(30)}
    for blob in forest.blobs:
        seed = seeds[forest.runs.history(blob.run, blob.end).tobytes()]
        assert store.read(blob.id) == payload(2000, seed)
    store.close(TIMEOUT_S)

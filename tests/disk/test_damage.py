"""Files and index damaged by hand: each is a miss or a sentence, and what is whole stays."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.disk_cache import (
    FINGERPRINT,
    TIMEOUT_S,
    ManualClock,
    blob_paths,
    finish,
    history,
    open_store,
    payload,
)

from milepost.cache.disk.store import DiskStore
from milepost.errors import DiskCacheUnusable, StoredStateLost

SIZE = 3_000_000
OLD_S = 3601.0


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def store_two(root: Path) -> tuple[DiskStore, int, Path]:
    """Return a store with two segments, and the id and path of the first."""
    store = open_store(root)
    store.put_segment(history(50), 0, payload(SIZE))
    store.put_segment(history(50, seed=1), 0, payload(SIZE, seed=1))
    blob = finish(store)[0].blob
    assert blob is not None
    return store, blob.id, store._folder.files.path_of(blob.id)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path, 0),
        lambda path: flip(path, 100),
        lambda path: flip(path, 128 + 200),
        lambda path: flip(path, SIZE // 2),
        lambda path: flip(path, SIZE + 200 + 127),
        lambda path: os.truncate(path, SIZE // 2),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, SIZE + 10_000),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["magic", "header", "payload-start", "payload", "payload-end", "torn", "empty", "longer",
         "missing", "folder"],
)  # fmt: skip
@pytest.mark.parametrize("ahead", [False, True], ids=["read", "prefetch"])
def test_a_damaged_file_is_a_miss_and_goes(
    tmp_path: Path, damage: Callable[[Path], None], ahead: bool
) -> None:
    store, blob_id, path = store_two(tmp_path)
    damage(path)
    if ahead:
        store.prefetch([blob_id])
    with pytest.raises(StoredStateLost):
        store.read(blob_id)
    finish(store)
    (rest,) = store.load().blobs
    assert store.read(rest.id) == payload(SIZE, seed=1)
    assert store.statistics().num_lost == 1
    assert not path.is_file()
    store.close(TIMEOUT_S)


def test_a_file_is_not_taken_for_another(tmp_path: Path) -> None:
    store, blob_id, path = store_two(tmp_path)
    (other,) = [other for other in blob_paths(store) if other != path]
    shutil.copy(other, path)
    with pytest.raises(StoredStateLost, match="not the one that the index knows"):
        store.read(blob_id)
    store.close(TIMEOUT_S)


def test_a_read_that_fails_just_now_removes_nothing(tmp_path: Path) -> None:
    import resource

    store, blob_id, path = store_two(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StoredStateLost, match="cannot be read"):
            store.read(blob_id)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.read(blob_id) == payload(SIZE)
    store.close(TIMEOUT_S)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"no database at all" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:100] + os.urandom(20_000)),
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 0),
    ],
    ids=["foreign", "overwritten", "torn", "missing", "empty"],
)
def test_a_damaged_index_is_made_again_from_the_files(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store, blob_id, _ = store_two(tmp_path)
    store.close(TIMEOUT_S)
    damage(store.folder / "index.sqlite")
    store = open_store(tmp_path)
    forest = store.load()
    assert len(forest.blobs) == 2
    (blob,) = [blob for blob in forest.blobs if blob.id == blob_id]
    assert forest.runs.history(blob.run, blob.end).tolist() == history(50).tolist()
    assert store.read(blob_id) == payload(SIZE)
    store.close(TIMEOUT_S)


def overwrite_index(store: DiskStore) -> None:
    """Leave nothing of the index but its length."""
    index = store.folder / "index.sqlite"
    connection = sqlite3.connect(index)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with index.open("r+b") as file:
        file.write(os.urandom(index.stat().st_size))


def test_an_index_that_is_damaged_under_way_is_made_again_by_the_writer(tmp_path: Path) -> None:
    store, blob_id, _ = store_two(tmp_path)
    overwrite_index(store)
    for num_tokens in (60, 61, 62):
        store.put_segment(history(num_tokens), 0, payload(10))
    assert finish(store)[-1].blob is not None
    assert store.read(blob_id) == payload(SIZE)
    assert len(store.load().blobs) >= 3
    store.close(TIMEOUT_S)


def test_an_index_that_is_damaged_when_it_is_loaded_is_made_again(tmp_path: Path) -> None:
    store, blob_id, _ = store_two(tmp_path)
    overwrite_index(store)
    assert len(store.load().blobs) == 2
    assert store.read(blob_id) == payload(SIZE)
    store.put_segment(history(60), 0, payload(10))
    finish(store)
    assert len(store.load().blobs) == 3
    store.close(TIMEOUT_S)


def test_an_index_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    store, _, _ = store_two(tmp_path)
    store.close(TIMEOUT_S)
    connection = sqlite3.connect(store.folder / "index.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(DiskCacheUnusable, match=r"version 9.*a newer milepost made it"):
        open_store(tmp_path)
    assert len(blob_paths(store)) == 2


def test_a_blob_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock(now_s=4e9)  # all files are old
    store, _, path = store_two(tmp_path)
    store.close(TIMEOUT_S)
    flip(path, 9)  # version 257
    (store.folder / "index.sqlite").unlink()
    store = open_store(tmp_path, clock.both())
    assert len(store.load().blobs) == 1
    assert path.exists()
    store.close(TIMEOUT_S)


def test_a_folder_that_says_something_else_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close(TIMEOUT_S)
    (store.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DiskCacheUnusable, match="describes another model"):
        open_store(tmp_path)


def test_another_fingerprint_has_another_folder(tmp_path: Path) -> None:
    import dataclasses

    store, _, _ = store_two(tmp_path)
    other = open_store(tmp_path, fingerprint=dataclasses.replace(FINGERPRINT, type_k="q8_0"))
    assert other.load().blobs == []
    assert other.folder != store.folder
    other.purge(TIMEOUT_S)
    assert len(blob_paths(store)) == 2
    store.close(TIMEOUT_S)
    other.close(TIMEOUT_S)


@pytest.mark.parametrize("age_s", [10.0, OLD_S])
def test_what_nobody_can_use_goes_when_it_is_old(tmp_path: Path, age_s: float) -> None:
    store, blob_id, path = store_two(tmp_path)
    folder = path.parent
    rubbish = [folder / ("0" * 16 + ".tmp"), folder / ("1" * 16)]
    for file in rubbish:
        file.write_bytes(b"torn")
    foreign = folder / "notes.txt"
    foreign.touch()
    store.close(TIMEOUT_S)
    clock = ManualClock(rubbish[0].stat().st_mtime + age_s)
    store = open_store(tmp_path, clock.both())
    assert [file.exists() for file in rubbish] == [age_s < OLD_S] * 2
    assert foreign.exists()
    assert len(store.load().blobs) == 2
    store.close(TIMEOUT_S)


def test_rows_without_files_go_when_the_folder_is_opened(tmp_path: Path) -> None:
    store, _, path = store_two(tmp_path)
    store.close(TIMEOUT_S)
    path.unlink()
    store = open_store(tmp_path)
    assert len(store.load().blobs) == 1
    store.close(TIMEOUT_S)


def test_a_copy_in_another_folder_costs_nothing(tmp_path: Path) -> None:
    store, blob_id, path = store_two(tmp_path)
    store.close(TIMEOUT_S)
    for name in ("00", "ff"):  # before and after its own, whatever the order of a listing is
        (path.parent.parent / name).mkdir(exist_ok=True)
        shutil.copy2(path, path.parent.parent / name / path.name)
    clock = ManualClock(path.stat().st_mtime + OLD_S)
    store = open_store(tmp_path, clock.both())
    store.load()
    assert store.read(blob_id)
    store.close(TIMEOUT_S)


@pytest.mark.parametrize(
    "change",
    [
        "runs SET start = 'x'",
        "runs SET parent = 0.5",
        "runs SET first = CAST(x'ff' AS TEXT)",
        "runs SET tokens = CAST(tokens AS TEXT)",
        "runs SET tokens = substr(tokens, 1, 7)",
        "blobs SET run = 'x'",
        "blobs SET \"end\" = 'x'",
        "blobs SET num_bytes = 1e400",
        "blobs SET kind = 77",
        "blobs SET name = CAST(x'ff' AS TEXT), start = 'x'",
        "blobs SET history = CAST(history AS TEXT)",
        "blobs SET last_used_s = 'x'",
        "pins SET pos = 'x'",
        "days SET num_bytes = 'x'",
    ],
)
def test_a_value_of_another_type_is_a_miss_until_the_next_start(
    tmp_path: Path, change: str
) -> None:
    """A bit that flips in a record of SQLite changes the type of a value, and nobody notices."""
    store, blob_id, _ = store_two(tmp_path)
    store.pin(history(50), "client")
    finish(store)
    connection = sqlite3.connect(store.folder / "index.sqlite")
    table = change.split()[0]
    connection.execute(f"UPDATE {change} WHERE rowid IN (SELECT rowid FROM {table} LIMIT 1)")
    connection.commit()
    connection.close()

    store.load()
    store.put_segment(history(60), 0, payload(10))
    finish(store)
    assert store.close(TIMEOUT_S)

    store = open_store(tmp_path)
    assert {blob.num_bytes for blob in store.load().blobs} >= {SIZE}
    assert len(store.load().blobs) >= 2
    assert store.read(blob_id) == payload(SIZE)
    store.put_segment(history(70), 0, payload(10))
    assert finish(store)[-1].blob is not None
    assert store.close(TIMEOUT_S)

"""The index: histories in a forest of runs, each stored content once, bare runs gone."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.disk_cache import branch, history

from milepost.cache.disk.format import BlobHeader, encode_tokens, history_checksum
from milepost.cache.disk.index import Index, Use
from milepost.cache.disk.stored_forest import NO_RUN, StoredBlob
from milepost.cache.tree import Tokens
from milepost.errors import DiskCacheUnusable


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index.open(tmp_path / "index.sqlite")
    yield index
    index.close()


def add(index: Index, tokens: Tokens, blob_id: int, start: int = 0) -> StoredBlob:
    header = BlobHeader(
        id=blob_id,
        kind="segment",
        name="",
        start=start,
        end=len(tokens),
        num_bytes=100,
        written_s=0,
        fingerprint=b"f" * 16,
        history=history_checksum(encode_tokens(tokens)),
        checksum=b"c" * 16,
    )
    with index.transaction():
        return index.add_blob(header, index.add_run(tokens), now_s=10.0)


def test_a_history_that_goes_on_adds_what_is_new(index: Index) -> None:
    first = add(index, history(50), 1)
    second = add(index, history(80), 2, start=50)
    runs = index.load().runs
    assert list(runs.ids) == [first.run, second.run]
    assert list(runs.parents) == [NO_RUN, first.run]
    assert list(runs.starts) == [0, 50]
    assert [len(runs.own_tokens(i)) for i in range(len(runs))] == [50, 30]


def test_a_branch_leaves_its_parent_inside(index: Index) -> None:
    whole, beside = history(50), branch(history(50), 20, 10)
    first, second = add(index, whole, 1), add(index, beside, 2)
    third = add(index, branch(beside, 30, 5, seed=2), 3)
    runs = index.load().runs
    assert list(runs.parents) == [NO_RUN, first.run, second.run]
    assert list(runs.starts) == [0, 20, 30]
    assert runs.history(second.run, 30).tolist() == beside.tolist()
    assert runs.history(first.run, 10).tolist() == whole[:10].tolist()
    assert runs.history(third.run, 35).tolist() == branch(beside, 30, 5, seed=2).tolist()


def test_the_end_of_a_shorter_history_lies_inside_a_run(index: Index) -> None:
    first = add(index, history(50), 1)
    second = add(index, history(30), 2)
    assert second.run == first.run
    assert len(index.load().runs) == 1


def test_random_histories_come_back(index: Index) -> None:
    random = np.random.default_rng(5)
    stored: dict[int, Tokens] = {}
    for blob_id in range(1, 150):
        tokens = random.integers(0, 2, random.integers(1, 12)).astype(np.int32)
        try:
            add(index, tokens, blob_id)
        except sqlite3.IntegrityError:
            assert any(np.array_equal(tokens, other) for other in stored.values())
        else:
            stored[blob_id] = tokens
        if stored and random.random() < 0.4:
            gone = int(random.choice(list(stored)))
            with index.transaction():
                index.remove_blobs([gone])
            del stored[gone]
        forest = index.load()
        found = {b.id: forest.runs.history(b.run, b.end).tolist() for b in forest.blobs}
        assert found == {blob_id: tokens.tolist() for blob_id, tokens in stored.items()}
    with index.transaction():
        index.remove_blobs(list(stored))
    assert len(index.load().runs) == 0


def test_the_same_content_has_one_row(index: Index) -> None:
    blob = add(index, history(50), 1)
    with pytest.raises(sqlite3.IntegrityError):
        add(index, history(50), 2)
    assert index.blob_ids() == {1}
    assert index.find_blob("segment", 0, blob.history) == blob
    assert index.find_blob("segment", 1, blob.history) is None
    assert index.find_blob("checkpoint", 0, blob.history) is None


def test_a_failed_transaction_leaves_nothing(index: Index) -> None:
    add(index, history(50), 1)
    with pytest.raises(sqlite3.IntegrityError):
        add(index, history(80), 1)
    assert len(index.load().runs) == 1


def test_a_pin_keeps_its_history(index: Index) -> None:
    with index.transaction():
        index.set_pin(history(30), "system_end")
    (pin,) = index.load().pins
    assert (pin.pos, pin.kind) == (30, "system_end")
    assert index.load().runs.history(pin.run, 30).tolist() == history(30).tolist()
    with index.transaction():
        index.remove_pin(history(30))
        index.remove_pin(history(90))
    assert index.load().pins == []
    assert len(index.load().runs) == 0


def test_uses_add_up_and_never_go_back(index: Index) -> None:
    add(index, history(50), 1)
    with index.transaction():
        index.add_uses([Use(1, 20.0, 2), Use(99, 1.0, 1)])
        index.add_uses([Use(1, 5.0, 1)])
    (blob,) = index.load().blobs
    assert (blob.last_used_s, blob.num_hits) == (20.0, 3)


def test_sizes_are_those_of_the_files(index: Index) -> None:
    assert index.total_bytes() == 0
    blobs = [add(index, history(50), 1), add(index, history(80), 2)]
    assert index.total_bytes() == sum(blob.file_bytes for blob in blobs) == 2 * 228 + 4 * 130
    with index.transaction():
        index.add_written(7, 100)
        index.add_written(7, 1)
    assert (index.written_bytes(7), index.written_bytes(8)) == (101, 0)


def test_some_blobs_come_with_their_histories(index: Index) -> None:
    add(index, history(50), 1)
    add(index, history(80), 2)
    add(index, history(40, seed=9), 3)
    forest = index.load_blobs([2, 77])
    assert [blob.id for blob in forest.blobs] == [2]
    assert len(forest.runs) == 2
    assert forest.runs.history(forest.blobs[0].run, 80).tolist() == history(80).tolist()


def test_a_newer_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    Index.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(DiskCacheUnusable, match="has version 3, and this program knows 2"):
        Index.open(path)


def test_an_older_index_is_taken_over_as_it_is(tmp_path: Path, index: Index) -> None:
    stored = add(index, history(50), 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 1")
        Index.open(tmp_path / "index.sqlite").close()
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert index.load().blobs == [stored]


COUNT_BLOBS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(*connection.execute("SELECT COUNT(*) FROM blobs").fetchone())
connection.close()
"""


def count_from_outside(path: Path) -> int:
    """Count the blobs in a process of its own, which closes the index again."""
    command = [sys.executable, "-c", COUNT_BLOBS, str(path)]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def test_a_second_connection_of_a_process_takes_no_locks_from_the_first(
    tmp_path: Path, index: Index
) -> None:
    """Without its lock, whoever closes the index takes himself for the last and ends its log."""
    path = tmp_path / "index.sqlite"
    Index.open(path).close()
    assert count_from_outside(path) == 0
    add(index, history(50), 1)
    assert count_from_outside(path) == 1


def test_only_the_owner_can_read_it(tmp_path: Path, index: Index) -> None:
    add(index, history(5), 1)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("index.sqlite")]
    assert len(files) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_an_index_that_was_replaced_is_noticed(tmp_path: Path, index: Index) -> None:
    assert index.is_current()
    (tmp_path / "index.sqlite").rename(tmp_path / "elsewhere")
    assert not index.is_current()
    Index.open(tmp_path / "index.sqlite").close()
    assert not index.is_current()

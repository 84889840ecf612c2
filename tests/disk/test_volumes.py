"""A full disk, a read-only one, a folder that goes away under a running store."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disk_cache import TIMEOUT_S, blob_paths, finish, history, open_store, payload, refresh

from milepost.errors import DiskCacheUnusable, StoredStateLost


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB in memory."""
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs rights that are missing here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_and_keeps_what_is_there(small_volume: Path) -> None:
    store = open_store(small_volume, max_volume_share=99.0)  # beyond it: only the system refuses
    store.put_segment(history(50), 0, payload(500_000))
    store.put_segment(history(60), 0, payload(5_000_000))
    first, second = finish(store)
    assert first.blob is not None
    assert (second.blob, second.refusal) == (None, "failed")
    assert "No space left" in second.detail
    assert store.read(first.blob.id) == payload(500_000)
    assert list(small_volume.rglob("*.tmp")) == []
    store.put_segment(history(70), 0, payload(100_000))
    assert [completion.refusal for completion in finish(store)] == [None]
    store.close(TIMEOUT_S)


def test_a_disk_that_is_full_to_the_last_byte(small_volume: Path) -> None:
    store = open_store(small_volume, max_volume_share=99.0)
    for num_tokens in range(10, 3000, 10):
        store.put_checkpoint(history(num_tokens, seed=num_tokens), "chunk", payload(9000))
    completions = finish(store)
    written = [completion.blob for completion in completions if completion.blob is not None]
    assert {c.refusal for c in completions} == {None, "failed"}
    for blob in written:
        assert store.read(blob.id) == payload(9000)
    assert len(blob_paths(store)) == len(written)
    store.remove([blob.id for blob in written[:50]])
    store.flush(TIMEOUT_S)
    store.close(TIMEOUT_S)
    store = open_store(small_volume, max_volume_share=99.0)
    assert {blob.id for blob in store.load().blobs} >= {blob.id for blob in written[50:]}
    store.close(TIMEOUT_S)


def test_no_room_for_an_index_is_a_sentence(small_volume: Path) -> None:
    with (small_volume / "filler").open("wb") as file:
        file.write(bytes(2 << 20))
    with pytest.raises(DiskCacheUnusable, match="choose another with --cache-dir"):
        open_store(small_volume)


def test_a_volume_that_becomes_read_only(small_volume: Path) -> None:
    store = open_store(small_volume, max_volume_share=99.0)
    store.put_segment(history(50), 0, payload(1000))
    (first,) = finish(store)
    assert first.blob is not None
    store.close(TIMEOUT_S)
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    with pytest.raises(DiskCacheUnusable, match="make it writable"):
        open_store(small_volume)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DiskCacheUnusable, match="make it writable"):
        open_store(tmp_path / "cache")


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(DiskCacheUnusable, match="cannot be used for the disk cache"):
        open_store(tmp_path / "cache")


def test_a_folder_deleted_under_way_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    store.put_segment(history(50), 0, payload(1000))
    (first,) = finish(store)
    shutil.rmtree(tmp_path / "cache")
    assert first.blob is not None
    with pytest.raises(StoredStateLost):
        store.read(first.blob.id)
    store.put_segment(history(50), 0, payload(1000))
    (second,) = finish(store)
    assert second.blob is not None
    assert not second.was_known
    assert store.read(second.blob.id) == payload(1000)
    assert store.close(TIMEOUT_S)
    store = open_store(tmp_path / "cache")
    assert [blob.id for blob in store.load().blobs] == [second.blob.id]
    store.close(TIMEOUT_S)


def test_asking_after_the_folder_was_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    store.put_segment(history(50), 0, payload(1000))
    finish(store)
    shutil.rmtree(tmp_path / "cache")
    assert refresh(store).added.blobs == []
    with pytest.raises(DiskCacheUnusable):
        store.load()
    assert store.close(TIMEOUT_S)

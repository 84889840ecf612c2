"""Embeddings come back from disk as they were, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from milepost.cache.disk.embedding_files import EmbeddingFiles, decode_embeddings, encode_embeddings

KEYS = [bytes([number]) * 32 for number in range(5)]


def make_embeddings(seed: int) -> list[np.ndarray]:
    """Return two pieces; a file of them has 8 + 32 + 16 + 4 * 6 * 4 bytes."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, 4), np.float32) for rows in (5, 1)]


FILE_BYTES = len(encode_embeddings(make_embeddings(0)))


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    files = EmbeddingFiles(tmp_path / "media", 1 << 20)
    written = make_embeddings(1)
    files.write_embeddings(KEYS[0], written)

    found = EmbeddingFiles(tmp_path / "media", 1 << 20).read_embeddings(KEYS[0])

    assert found is not None
    assert [piece.shape for piece in found] == [(5, 4), (1, 4)]
    assert all(np.array_equal(left, right) for left, right in zip(found, written, strict=True))
    assert files.read_embeddings(KEYS[1]) is None
    assert (tmp_path / "media").stat().st_mode & 0o777 == 0o700


def test_every_damaged_byte_is_a_miss() -> None:
    data = encode_embeddings(make_embeddings(2))
    assert decode_embeddings(data) is not None
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 0x10
        assert decode_embeddings(bytes(damaged)) is None
        assert decode_embeddings(data[:index]) is None


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    files = EmbeddingFiles(tmp_path, 1 << 20)
    files.write_embeddings(KEYS[0], make_embeddings(3))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])

    assert files.read_embeddings(KEYS[0]) is None

    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    files = EmbeddingFiles(tmp_path, 3 * FILE_BYTES)
    for age, key in enumerate(KEYS[:3]):
        files.write_embeddings(key, make_embeddings(age))
        os.utime(tmp_path / key.hex(), (age, age))
    assert files.read_embeddings(KEYS[0]) is not None  # used last

    files.write_embeddings(KEYS[3], make_embeddings(3))

    assert [files.read_embeddings(key) is not None for key in KEYS] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_what_is_larger_than_the_room_is_not_written(tmp_path: Path) -> None:
    files = EmbeddingFiles(tmp_path / "media", FILE_BYTES - 1)
    files.write_embeddings(KEYS[0], make_embeddings(4))
    assert not (tmp_path / "media").exists()


def test_a_disk_that_takes_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "media").write_text("a file in the way")
    EmbeddingFiles(tmp_path / "media", 1 << 20).write_embeddings(KEYS[0], make_embeddings(5))
    assert "not on disk" in caplog.text


def test_all_can_be_removed(tmp_path: Path) -> None:
    files = EmbeddingFiles(tmp_path / "media", 1 << 20)
    files.remove_all()
    files.write_embeddings(KEYS[0], make_embeddings(6))
    files.remove_all()
    assert files.read_embeddings(KEYS[0]) is None


def test_what_cannot_be_removed_stays_and_the_rest_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = EmbeddingFiles(tmp_path, 1 << 20)
    (tmp_path / "0").mkdir()  # no file: it cannot be unlinked
    for key in KEYS:
        files.write_embeddings(key, make_embeddings(4))
    files.remove_all()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert "0 cannot be removed" in caplog.text


def test_a_folder_that_is_none_is_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(b"")
    EmbeddingFiles(path, 1 << 20).remove_all()
    assert path.exists()

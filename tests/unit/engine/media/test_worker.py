"""The thread that encodes outlives whatever goes wrong on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from milepost.cache.disk.embedding_files import EmbeddingFiles, Embeddings
from milepost.engine.media.worker import Done, Job, MediaWorker
from milepost.errors import InvalidRequest, NativeCallFailed
from milepost.libllama.media import MediaSize

TIMEOUT_S = 20.0
KEY = b"k" * 32
SIZE = MediaSize("image", 2, 2)


def encode(size: MediaSize, data: bytes) -> Embeddings:
    """Return one embedding; refuse what is empty, and fail at one byte."""
    if not data:
        raise InvalidRequest("it is empty")
    return [np.full((1, 4), data[1], np.float32)]


class Bench:
    """A worker, and a way to wait for it."""

    def __init__(self, folder: Path) -> None:
        self._woken = threading.Semaphore(0)
        self.worker = MediaWorker(encode, EmbeddingFiles(folder, 1 << 20), self._woken.release)

    def do(self, data: bytes | None) -> Done:
        """Return what becomes of a job."""
        self.worker.submit(Job(KEY, KEY, SIZE, data))
        assert self._woken.acquire(timeout=TIMEOUT_S)
        (done,) = self.worker.collect()
        return done


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "media")
    yield bench
    assert bench.worker.close()


def test_an_error_of_a_job_is_told(bench: Bench) -> None:
    assert isinstance(bench.do(b"").error, InvalidRequest)
    failure = bench.do(b"1").error
    assert isinstance(failure, NativeCallFailed)
    assert "could not be encoded" in str(failure)


def test_an_error_of_a_call_does_not_end_the_thread(bench: Bench) -> None:
    bench.worker.call(lambda: [][0])
    assert bench._woken.acquire(timeout=TIMEOUT_S)
    assert bench.do(b"12").embeddings is not None


def test_embeddings_that_no_file_can_hold_do_not_end_the_thread(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / KEY.hex()).mkdir()  # in the place of the file
    bench = Bench(folder)
    assert bench.do(b"12").embeddings is not None
    bench.worker.clear_files()
    assert bench._woken.acquire(timeout=TIMEOUT_S)
    assert bench.do(b"12").embeddings is not None
    assert bench.worker.close()

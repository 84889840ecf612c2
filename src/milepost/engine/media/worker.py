"""The thread that encodes media, so that nobody else waits for it.

Takes jobs in order: embeddings are read from disk, or made from the content of a media item and
then written there. Encoding takes from milliseconds to minutes, without the GIL.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from milepost.cache.disk.embedding_files import EmbeddingFiles, Embeddings
from milepost.errors import MilepostError, NativeCallFailed
from milepost.libllama.media import MediaSize

CLOSE_S = 3.0  # arbitrary; the supervisor waits for the disk and this

Encode = Callable[[MediaSize, bytes], Embeddings]

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """Get the embeddings of a media item."""

    key: bytes  # of the media, for the one who asked
    file_key: bytes  # all that its embeddings depend on
    size: MediaSize
    data: bytes | None  # None: from disk, if they are there
    is_cancelled: bool = False  # set by the loop while the job waits; may come too late


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """What became of a job; neither embeddings nor an error: they are not on disk."""

    job: Job
    embeddings: Embeddings | None = None
    error: MilepostError | None = None
    elapsed_s: float = 0.0


class MediaWorker:
    """Owns the thread; its methods are for the loop's."""

    def __init__(
        self, encode: Encode, files: EmbeddingFiles | None, wake: Callable[[], None]
    ) -> None:
        """`wake` is called on the worker's thread after each job."""
        self._encode = encode
        self._files = files
        self._wake = wake
        self._jobs: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="media", daemon=True)
        self._thread.start()

    @property
    def has_files(self) -> bool:
        """Whether embeddings may be on disk."""
        return self._files is not None

    def submit(self, job: Job) -> None:
        """Add a job; its end is in a later `collect`."""
        self._jobs.put(job)

    def collect(self) -> list[Done]:
        """Return the jobs that have ended since the last call."""
        found = []
        try:
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            return found

    def call(self, function: Callable[[], None]) -> None:
        """Have something else done on the thread, after the jobs that wait.

        What it raises is logged.
        """
        self._jobs.put(function)

    def clear_files(self) -> None:
        """Remove what is on disk, after the jobs that wait."""
        if self._files is not None:
            self.call(self._files.remove_all)

    def close(self) -> bool:
        """End the thread after the jobs that wait; cancel them first for a quick end.

        Returns False where it still encodes: that cannot be stopped, and ends with the process.
        """
        self._jobs.put(None)
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Job):
                done = Done(job) if job.is_cancelled else self._carry_out(job)
                self._done.put(done)
                self._wake()
                self._guard(partial(self._store, done))
            else:
                self._guard(job)
                self._wake()

    def _store(self, done: Done) -> None:
        if self._files is not None and done.job.data is not None and done.embeddings is not None:
            self._files.write_embeddings(done.job.file_key, done.embeddings)

    def _guard(self, function: Callable[[], None]) -> None:
        """Call a function; whatever it raises is logged, for without the thread all would wait."""
        try:
            function()
        except Exception:
            logger.exception("the thread of the media came upon an error of our own")

    def _carry_out(self, job: Job) -> Done:
        started_s = time.perf_counter()
        try:
            if job.data is None:
                found = (
                    self._files.read_embeddings(job.file_key) if self._files is not None else None
                )
            else:
                found = self._encode(job.size, job.data)
        except MilepostError as error:
            return Done(job, error=error)
        except Exception as error:  # an edge: a request must not wait for a thread that is gone
            logger.exception("a media item could not be encoded: an error of our own")
            return Done(job, error=NativeCallFailed(f"a media item could not be encoded: {error}"))
        return Done(job, found, elapsed_s=time.perf_counter() - started_s)

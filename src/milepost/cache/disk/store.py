"""The disk tier: segments and checkpoints that outlive the process.

One thread owns a store (the engine's loop) and never waits for the disk but in `read`, `flush` and
`close`. What it wants written goes to the writer's queue; what became of it is asked for later.
The store decides nothing: what is worth storing and what has to go is the caller's to say.

    store = DiskStore.open(root, fingerprint, limits, clock)
    forest = store.load()                            # all that earlier runs left
    ticket = store.put_segment(tokens, start, data)  # None: the queue is full
    for completion in store.take_completions(): ...  # its blob has an id to read it by
    for changes in store.take_changes(): ...         # what other processes stored meanwhile
    data = store.read(blob_id)                       # StoredStateLost: a miss
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from milepost.cache.disk.blob_files import OnStep
from milepost.cache.disk.blob_reader import BlobReader, is_lost
from milepost.cache.disk.fingerprint import Fingerprint
from milepost.cache.disk.folder import INDEX_FILE, DiskFolder
from milepost.cache.disk.format import BlobKind
from milepost.cache.disk.index import Index, Use
from milepost.cache.disk.limits import DiskClock, DiskLimits
from milepost.cache.disk.stored_forest import StoredBlob, StoredForest
from milepost.cache.disk.watch import Changes
from milepost.cache.disk.writer import (
    Command,
    Completion,
    DiskWriter,
    Flush,
    Look,
    NoteUses,
    Purge,
    Put,
    Remove,
    SetPin,
    Stop,
    Watch,
    WriterStatus,
)
from milepost.cache.segment import Data
from milepost.cache.tree import Tokens
from milepost.errors import DiskCacheUnusable, StoredStateLost
from milepost.sqlite_files import is_damage

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

# Uses are told to the writer in batches of so many blobs. Arbitrary.
MAX_UNTOLD_USES = 64
# The weight of the latest read in the measured rate, and what is too small to measure. Arbitrary.
RATE_WEIGHT = 0.3
MIN_MEASURED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """Sizes and totals."""

    num_blobs: int  # that this process knows
    num_bytes: int  # of their files
    budget_bytes: int
    queued_bytes: int  # of payloads, not yet completed
    writer: WriterStatus
    num_reads: int
    num_prefetched_reads: int  # of them: begun before they were asked for
    num_lost: int  # gone or damaged when asked for
    read_bytes: int
    read_bytes_per_s: float  # of late, checked; 0: not known


class DiskStore:
    """The states of one fingerprint on disk, shared with other processes."""

    def __init__(self, folder: DiskFolder, index: Index, limits: DiskLimits, clock: DiskClock):
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._writer = DiskWriter(folder, index, limits, clock)
        self._reader = BlobReader(folder.files, limits.max_prefetch_bytes)
        self._blobs: dict[int, StoredBlob] = {}
        self._num_bytes = 0
        self._queued_bytes = 0
        self._num_tickets = 0
        self._untold_uses: dict[int, Use] = {}
        self._num_reads = 0
        self._num_prefetched_reads = 0
        self._num_lost = 0
        self._read_bytes = 0
        self._read_bytes_per_s = 0.0

    @classmethod
    def open(
        cls,
        root: Path,
        fingerprint: Fingerprint,
        limits: DiskLimits,
        clock: DiskClock,
        on_step: OnStep = lambda step: None,
    ) -> DiskStore:
        """Open the folder of a fingerprint below `root`, made if need be, and start the writer.

        Raises:
            DiskCacheUnusable: read-only, full, or of a newer program.
        """
        folder = DiskFolder.of_fingerprint(root, fingerprint, on_step)
        try:
            store = cls(folder, folder.open_index(clock.wall_s()), limits, clock)
            store._writer.start()
        except sqlite3.Error as error:
            raise DiskCacheUnusable(
                f"the index in {folder.path} cannot be read ({error})"
            ) from error
        return store

    @property
    def folder(self) -> Path:
        """The folder of its fingerprint."""
        return self._folder.path

    @property
    def num_bytes(self) -> int:
        """The length of all files that this process knows; may exceed the budget after `load`."""
        return self._num_bytes

    # --- asking --------------------------------------------------------------------------

    def load(self) -> StoredForest:
        """Return all that is stored; an index that turns out to be damaged is made again first.

        Raises:
            DiskCacheUnusable: it cannot be read.
        """
        try:
            forest = self._load_repaired()
        except (OSError, sqlite3.Error) as error:
            raise DiskCacheUnusable(f"{self._index_path} cannot be read ({error})") from error
        self._blobs = {blob.id: blob for blob in forest.blobs}
        self._num_bytes = sum([blob.file_bytes for blob in forest.blobs])
        self._tell(Watch(tuple(self._blobs)))
        return forest

    def find(self, blob_id: int) -> StoredBlob | None:
        """Return what is known of a blob."""
        return self._blobs.get(blob_id)

    def read(self, blob_id: int) -> memoryview:
        """Return a payload, every byte checked; waits for the disk.

        Raises:
            StoredStateLost: it is gone, damaged or cannot be read now. What is lost for good is
                removed.
        """
        blob = self._blobs.get(blob_id)
        if blob is None:
            raise StoredStateLost(f"nothing with the id {blob_id:016x} is stored")
        began_s, was_prefetched = self._clock.steady_s(), self._reader.is_prefetched(blob_id)
        try:
            payload = self._reader.read(blob)
        except StoredStateLost:
            self._lose(blob)
            raise
        except OSError as error:
            if is_lost(error):
                self._lose(blob)
            raise StoredStateLost(
                f"{error.filename or blob_id} cannot be read ({error})"
            ) from error
        self._count_read(blob, self._clock.steady_s() - began_s, was_prefetched)
        return payload

    def prefetch(self, ids: Iterable[int]) -> None:
        """Begin to read blobs that will be asked for; earlier ones besides them are dropped."""
        self._reader.prefetch([self._blobs[id_] for id_ in ids if id_ in self._blobs])

    def statistics(self) -> DiskStatistics:
        """Return the sizes and totals."""
        return DiskStatistics(
            num_blobs=len(self._blobs),
            num_bytes=self._num_bytes,
            budget_bytes=self._limits.budget_bytes,
            queued_bytes=self._queued_bytes,
            writer=self._writer.status,
            num_reads=self._num_reads,
            num_prefetched_reads=self._num_prefetched_reads,
            num_lost=self._num_lost,
            read_bytes=self._read_bytes,
            read_bytes_per_s=self._read_bytes_per_s,
        )

    # --- telling -------------------------------------------------------------------------

    def put_segment(self, tokens: Tokens, start: int, data: Data) -> int | None:
        """Have the cells of [start, len(tokens)) stored; return a ticket, or None: queue full.

        `data` must not change until its completion is taken.
        """
        assert 0 <= start < len(tokens)
        return self._put("segment", tokens, data, start=start)

    def put_checkpoint(self, tokens: Tokens, kind: str, data: Data) -> int | None:
        """Have the state after these tokens stored; otherwise as `put_segment`."""
        assert kind
        assert len(tokens) > 0
        return self._put("checkpoint", tokens, data, name=kind)

    def put_logits(self, tokens: Tokens, data: Data) -> int | None:
        """Have the logits after these tokens stored; otherwise as `put_segment`."""
        assert len(tokens) > 0
        return self._put("logits", tokens, data)

    def take_completions(self) -> list[Completion]:
        """Return what became of puts since the last call; new blobs can be read from now on."""
        completions = list(_drain(self._writer.completions))
        for completion in completions:
            self._queued_bytes -= completion.num_bytes
            if completion.blob is not None:
                self._learn(completion.blob)
        return completions

    def look_around(self) -> None:
        """Have it looked now what others did; that is done every second after a `load` as well."""
        self._tell(Look())

    def take_changes(self) -> list[Changes]:
        """Return what others stored and removed; new blobs can be read from now on."""
        found = list(_drain(self._writer.changes))
        for changes in found:
            self._forget(changes.removed)
            for blob in changes.added.blobs:
                self._learn(blob)
        return found

    def touch(self, ids: Iterable[int]) -> None:
        """Note a use of each; the index is told later, in batches."""
        now_s = self._clock.wall_s()
        for blob_id in ids:
            earlier = self._untold_uses.get(blob_id)
            num_hits = earlier.num_hits if earlier else 0
            self._untold_uses[blob_id] = Use(blob_id, now_s, num_hits + 1)
        if len(self._untold_uses) >= MAX_UNTOLD_USES:
            self._tell_uses()

    def remove(self, ids: Iterable[int]) -> None:
        """Have blobs removed; they are unknown from now on."""
        ids = tuple(ids)
        self._forget(ids)
        self._tell(Remove(ids))

    def pin(self, tokens: Tokens, kind: str) -> None:
        """Remember that the end of a history is pinned."""
        self._tell(SetPin(tokens.copy(), kind))

    def unpin(self, tokens: Tokens) -> None:
        """Take back a pin."""
        self._tell(SetPin(tokens.copy(), None))

    def purge(self, timeout_s: float) -> bool:
        """Remove every state and token of this fingerprint; return whether it was done in time."""
        self._forget(list(self._blobs))
        self._untold_uses.clear()
        self._tell(Purge())
        return self.flush(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was told is on disk; return whether it was done in time."""
        self._tell_uses()
        done = threading.Event()
        self._tell(Flush(done))
        return self._writer.is_running and done.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Finish what was told and end the threads; return whether it was done in time."""
        self._tell_uses()
        self._tell(Stop())
        self._reader.close()
        return self._writer.wait_until_stopped(timeout_s)

    # --- private -------------------------------------------------------------------------

    @property
    def _index_path(self) -> Path:
        return self._folder.path / INDEX_FILE

    def _load_repaired(self) -> StoredForest:
        try:
            return self._load_all()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
        self._folder.repair_index(self._clock.wall_s()).close()
        return self._load_all()

    def _load_all(self) -> StoredForest:
        index = Index.open(self._index_path)
        try:
            return index.load()
        finally:
            index.close()

    def _put(
        self, kind: BlobKind, tokens: Tokens, data: Data, *, start: int = 0, name: str = ""
    ) -> int | None:
        payload = memoryview(data).cast("B")
        queued_bytes = self._queued_bytes + payload.nbytes
        if self._queued_bytes > 0 and queued_bytes > self._limits.max_queue_bytes:
            return None
        self._queued_bytes = queued_bytes
        self._num_tickets += 1
        tokens = np.array(tokens, np.int32)  # a copy: the caller's may grow
        self._tell(Put(self._num_tickets, kind, name, start, tokens, payload))
        return self._num_tickets

    def _tell(self, command: Command) -> None:
        self._writer.commands.put(command)

    def _tell_uses(self) -> None:
        if self._untold_uses:
            self._tell(NoteUses(tuple(self._untold_uses.values())))
            self._untold_uses = {}

    def _learn(self, blob: StoredBlob) -> None:
        if blob.id not in self._blobs:
            self._blobs[blob.id] = blob
            self._num_bytes += blob.file_bytes

    def _forget(self, ids: Iterable[int]) -> None:
        for blob_id in ids:
            blob = self._blobs.pop(blob_id, None)
            if blob is not None:
                self._num_bytes -= blob.file_bytes

    def _lose(self, blob: StoredBlob) -> None:
        logger.warning("the stored state %016x is gone or damaged and is removed", blob.id)
        self._num_lost += 1
        self.remove([blob.id])

    def _count_read(self, blob: StoredBlob, elapsed_s: float, was_prefetched: bool) -> None:
        self._num_reads += 1
        self._num_prefetched_reads += was_prefetched
        self._read_bytes += blob.num_bytes
        if was_prefetched or elapsed_s <= 0 or blob.num_bytes < MIN_MEASURED_BYTES:
            return
        rate, weight = blob.num_bytes / elapsed_s, RATE_WEIGHT if self._read_bytes_per_s else 1.0
        self._read_bytes_per_s += weight * (rate - self._read_bytes_per_s)


def _drain(queue: SimpleQueue[Item]) -> Iterable[Item]:
    while not queue.empty():
        yield queue.get()

"""The one thread that writes: files, then rows, one command after the other.

It owns its connection to the index. The owner of the store talks to it by queues alone.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import shutil
import sqlite3
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Literal

from milepost.cache.disk.folder import DiskFolder
from milepost.cache.disk.format import (
    BlobHeader,
    BlobKind,
    encode_header,
    encode_tokens,
    history_checksum,
    payload_checksum,
)
from milepost.cache.disk.index import Index, Use
from milepost.cache.disk.limits import DiskClock, DiskLimits
from milepost.cache.disk.stored_forest import StoredBlob
from milepost.cache.disk.watch import Changes, FolderWatch
from milepost.cache.tree import Tokens
from milepost.errors import DiskCacheUnusable
from milepost.sqlite_files import is_damage

logger = logging.getLogger(__name__)

SECONDS_PER_DAY = 86400

Refusal = Literal[
    "budget",  # the files of this fingerprint fill it
    "volume",  # so do all files of the volume
    "write_limit",  # enough for one day
    "failed",  # the system refused: no space, read-only, busy, …
]


@dataclass(frozen=True, slots=True)
class Put:
    """Store a payload."""

    ticket: int
    kind: BlobKind
    name: str
    start: int
    tokens: Tokens  # [0, end)
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove blobs."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoteUses:
    """Remember uses."""

    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class SetPin:
    """Pin the end of a history, or take that back."""

    tokens: Tokens
    kind: str | None


@dataclass(frozen=True, slots=True)
class Watch:
    """Tell from now on what others store besides these, and remove."""

    known: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Tell it now."""


@dataclass(frozen=True, slots=True)
class Purge:
    """Remove everything."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Say that all before it is done."""

    done: threading.Event


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


Command = Put | Remove | NoteUses | SetPin | Watch | Look | Purge | Flush | Stop


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of a put."""

    ticket: int
    num_bytes: int  # of the payload
    blob: StoredBlob | None = None
    was_known: bool = False  # stored before, by whomever
    refusal: Refusal | None = None
    detail: str = ""  # of a failure


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """Totals of this process, and what the folder held after the last write."""

    num_written: int = 0
    num_known: int = 0
    num_refused: int = 0
    written_bytes: int = 0
    written_today_bytes: int = 0  # by all processes
    stored_bytes: int = 0  # by all processes
    last_failure: str = ""


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class _AlreadyStored(Exception):
    def __init__(self, blob: StoredBlob) -> None:
        self.blob = blob


class DiskWriter:
    """Carries out commands until it is told to stop."""

    def __init__(
        self, folder: DiskFolder, index: Index, limits: DiskLimits, clock: DiskClock
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.completions: SimpleQueue[Completion] = SimpleQueue()
        self.changes: SimpleQueue[Changes] = SimpleQueue()  # by others
        self.status = WriterStatus()  # replaced as a whole, so that others may read it
        self._folder = folder
        self._index = index
        self._limits = limits
        self._clock = clock
        self._watch = FolderWatch()
        self._is_watching = False
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="disk-writer", daemon=True)

    def start(self) -> None:
        """Start the thread; the index belongs to it from now on."""
        self._update_status()
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether commands are carried out."""
        return self._thread.is_alive()

    def wait_until_stopped(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not isinstance(command := self._next_command(), Stop):
            if isinstance(command, Flush):
                command.done.set()
            else:
                self._try(command)
        self._index.close()

    def _next_command(self) -> Command:
        """Wait for a command; look around when none comes."""
        try:
            return self.commands.get(timeout=self._limits.watch_s if self._is_watching else None)
        except Empty:
            return Look()

    def _try(self, command: Command) -> None:
        try:
            if not self._index.is_current():  # the folder was deleted, or the index moved aside
                if isinstance(command, Look):  # what is written next makes it anew
                    return
                self._reopen()
            self._carry_out(command)
        except (OSError, sqlite3.Error, DiskCacheUnusable) as error:
            self._report_failure(command, error)
            if isinstance(error, sqlite3.Error) and is_damage(error):
                self._repair()
        except Exception as error:  # an edge: without its thread nothing is written any more
            logger.exception("the disk cache came upon something that it cannot read")
            self._report_failure(command, error)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Put():
                self._put(command)
            case Remove(ids):
                self._remove(ids)
            case NoteUses(uses):
                with self._index.transaction():
                    self._index.add_uses(uses)
            case SetPin(tokens, kind):
                with self._index.transaction():
                    if kind is None:
                        self._index.remove_pin(tokens)
                    else:
                        self._index.set_pin(tokens, kind)
            case Watch(known):
                self._watch.know(known)
                self._is_watching = True
            case Look():
                if changes := self._watch.find_changes(self._index):
                    self.changes.put(changes)
            case Purge():
                self._folder.remove_contents(self._index)
                self._update_status()

    # --- writing -------------------------------------------------------------------------

    def _put(self, put: Put) -> None:
        history = history_checksum(tokens := encode_tokens(put.tokens))
        known = self._index.find_blob(put.kind, put.start, history)
        written, refusal = None, None
        if known is None:
            try:
                written = self._write(self._make_header(put, history), put, tokens)
            except _AlreadyStored as stored:
                known = stored.blob
            except _Refused as refused:
                refusal = refused.refusal
        self._update_status(
            num_written=written is not None,
            num_known=known is not None,
            num_refused=refusal is not None,
            written_bytes=written.file_bytes if written else 0,
        )
        blob = written or known
        if blob is not None:
            self._watch.know([blob.id])
        self.completions.put(
            Completion(put.ticket, put.payload.nbytes, blob, known is not None, refusal)
        )

    def _make_header(self, put: Put, history: bytes) -> BlobHeader:
        return BlobHeader(
            id=secrets.randbits(63),
            kind=put.kind,
            name=put.name,
            start=put.start,
            end=len(put.tokens),
            num_bytes=put.payload.nbytes,
            written_s=int(self._clock.wall_s()),
            fingerprint=self._folder.key,
            history=history,
            checksum=payload_checksum(put.payload),
        )

    def _write(self, header: BlobHeader, put: Put, tokens: bytes) -> StoredBlob:
        """Write the file, then its row: a row promises a whole file."""
        self._check_room(header.file_bytes)
        now_s, day = self._clock.wall_s(), self._today()
        pieces: list[bytes | memoryview] = [encode_header(header), tokens, put.payload]
        files = self._folder.files
        with files.writing(header.id, pieces):
            with self._index.transaction():
                self._check_budget(header.file_bytes)  # others write too
                blob = self._add_row(header, put, now_s)
                self._index.add_written(day, header.file_bytes)
                files.on_step("row_added")
            files.on_step("committed")
        return blob

    def _add_row(self, header: BlobHeader, put: Put, now_s: float) -> StoredBlob:
        """Add the row of a file, unless another process was quicker."""
        stored = self._index.find_blob(header.kind, header.start, header.history)
        if stored is not None and stored.id != header.id:
            raise _AlreadyStored(stored)
        if stored is not None:  # it was taken for an orphan, where there are no locks
            return stored
        return self._index.add_blob(header, self._index.add_run(put.tokens), now_s)

    def _check_room(self, num_bytes: int) -> None:
        self._check_budget(num_bytes)
        limit = self._limits.max_written_bytes_per_day
        if limit is not None and self._index.written_bytes(self._today()) + num_bytes > limit:
            raise _Refused("write_limit")
        volume = shutil.disk_usage(self._folder.path)
        max_used = volume.total * self._limits.max_volume_share
        if volume.total - volume.free + num_bytes > max_used:
            raise _Refused("volume")

    def _check_budget(self, num_bytes: int) -> None:
        if self._index.total_bytes() + num_bytes > self._limits.budget_bytes:
            raise _Refused("budget")

    def _remove(self, ids: tuple[int, ...]) -> None:
        for blob_id in ids:  # files first: a crash in between leaves rows that lead nowhere
            self._folder.files.remove(blob_id)
        with self._index.transaction():
            self._index.remove_blobs(ids)
        self._watch.forget(ids)
        self._update_status()

    # --- what may go wrong ---------------------------------------------------------------

    def _report_failure(self, command: Command, error: Exception) -> None:
        sentence = f"{type(error).__name__}: {error}"
        if sentence != self.status.last_failure:  # a full disk would fill the log as well
            logger.warning(
                "the disk cache in %s could not %s (%s)",
                self._folder.path,
                type(command).__name__.lower(),
                sentence,
            )
        status = dataclasses.replace(self.status, last_failure=sentence)
        if isinstance(command, Put):
            status = dataclasses.replace(status, num_refused=status.num_refused + 1)
            self.completions.put(
                Completion(
                    command.ticket, command.payload.nbytes, refusal="failed", detail=sentence
                )
            )
        self.status = status

    def _reopen(self) -> None:
        self._index.close()
        self._watch.reset()
        self._index = self._folder.open_index(self._clock.wall_s())

    def _repair(self) -> None:
        self._index.close()
        self._watch.reset()
        try:
            self._index = self._folder.repair_index(self._clock.wall_s())
        except DiskCacheUnusable as error:  # tried again with the next command
            logger.warning("%s", error)

    def _update_status(
        self,
        num_written: int = 0,
        num_known: int = 0,
        num_refused: int = 0,
        written_bytes: int = 0,
    ) -> None:
        status = self.status
        self.status = WriterStatus(
            num_written=status.num_written + num_written,
            num_known=status.num_known + num_known,
            num_refused=status.num_refused + num_refused,
            written_bytes=status.written_bytes + written_bytes,
            written_today_bytes=self._index.written_bytes(self._today()),
            stored_bytes=self._index.total_bytes(),
            last_failure=status.last_failure,
        )

    def _today(self) -> int:
        return int(self._clock.wall_s() // SECONDS_PER_DAY)

"""The SQLite files of milepost: opened, checked, and begun anew when they are damaged.

The index of the disk cache and the kept replies are such files. Several processes may have one
open. Functions may raise `sqlite3.Error` where nothing else is said.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from milepost.errors import DiskCacheUnusable

FILE_MODE = 0o600  # what is in them is a conversation
SUFFIXES = ("", "-wal", "-shm")  # SQLite's own files beside one
DAMAGED_SUFFIX = ".damaged"

Opened = TypeVar("Opened")

logger = logging.getLogger(__name__)

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


@dataclass(frozen=True, slots=True)
class SqliteFormat:
    """What a file of ours is made of, and told by."""

    application_id: int
    version: int  # PRAGMA user_version
    schema: str  # of a new file, and in place of one of a version that cannot be read
    oldest_readable: int  # of the versions that have the same tables
    probe: str  # a query that reads something of the tables, so that damage is seen at once
    busy_timeout_s: float


def open_sqlite(path: Path, file_format: SqliteFormat) -> sqlite3.Connection:
    """Open a file, made if it is missing; the connection may go from thread to thread.

    Raises:
        DiskCacheUnusable: it is of a newer version.
        sqlite3.DatabaseError: it is damaged, see `is_damage`.
        OSError: it cannot be read or written.
    """
    with contextlib.suppress(FileExistsError):  # SQLite's own mode is wider
        # Never one that exists: closing it would drop the locks that this process has on it,
        # and the next one to close the file would remove the log that others write to.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
    connection = sqlite3.connect(
        path,
        timeout=file_format.busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.text_factory = _decode_text
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # tokens are the conversation
        _make_schema(connection, path, file_format)
    except BaseException:
        connection.close()
        raise
    return connection


def open_anew_if_damaged(
    path: Path,
    open_file: Callable[[Path], Opened],
    discard: Callable[[Path], None],
) -> Opened:
    """Open a file; one that is damaged is discarded, with a warning, and made anew."""
    try:
        return open_file(path)
    except sqlite3.Error as error:
        if not is_damage(error):  # locked, or no room
            raise
        logger.warning("%s is damaged (%s) and is made again", path, error)
    discard(path)
    return open_file(path)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file itself is damaged, and not that it is busy."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and bool(code & 0xFF in _DAMAGE)


def is_sound(connection: sqlite3.Connection) -> bool:
    """Return whether nothing in the file contradicts itself; reads all of it."""
    try:
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def check_sound(connection: sqlite3.Connection) -> None:
    """Raise a `sqlite3.DatabaseError` that is damage unless the file is sound."""
    if not is_sound(connection):
        error = sqlite3.DatabaseError("its contents contradict themselves")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def set_aside(path: Path) -> None:
    """Move a file out of the way, in place of one that was moved before."""
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            beside = path.with_name(path.name + suffix)
            beside.replace(path.with_name(f"{path.name}{DAMAGED_SUFFIX}{suffix}"))


def remove_set_aside(path: Path) -> None:
    """Remove what `set_aside` has made of a file."""
    remove_sqlite(path.with_name(path.name + DAMAGED_SUFFIX))


def remove_sqlite(path: Path) -> None:
    """Remove a file with all beside it; the file last, for then a new one may be made at once."""
    for suffix in reversed(SUFFIXES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def read_inode(path: Path) -> int:
    """Return which file is at a path; 0: none. A connection to another one is of no use."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing; no other process writes meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _make_schema(connection: sqlite3.Connection, path: Path, wanted: SqliteFormat) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > wanted.version:
        raise DiskCacheUnusable(
            f"{path} has version {version}, and this program knows {wanted.version}: "
            "a newer milepost made it; use that one, or another --cache-dir"
        )
    if version >= wanted.oldest_readable:
        connection.execute(wanted.probe)
        if version < wanted.version:
            connection.execute(f"PRAGMA user_version = {wanted.version}")
        return
    connection.executescript(
        f"BEGIN IMMEDIATE; {wanted.schema} PRAGMA application_id = {wanted.application_id};"
        f" PRAGMA user_version = {wanted.version}; COMMIT;"
    )


def _decode_text(data: bytes) -> str:
    return data.decode(errors="replace")  # damage is no error of a query

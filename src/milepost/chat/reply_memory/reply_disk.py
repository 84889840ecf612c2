"""Keeps the sampled replies of a model on disk, for later runs (docs/disk-format.md).

    <cache folder>/<fingerprint>/replies.sqlite

Without it the states on disk would be of use up to the first token only that no tokenizer makes.
Read when the model is loaded; a thread writes it, and reads what other servers write meanwhile. A
file that cannot be used is logged, and the server goes on without it: a reply that is not known
costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import sqlite3
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from milepost.chat.reply_memory.reply_meaning import DIGEST_BYTES
from milepost.chat.reply_memory.reply_store import MAX_BYTES, KeptReply, ReplyStore
from milepost.errors import DiskCacheUnusable
from milepost.sqlite_files import (
    SqliteFormat,
    check_sound,
    open_anew_if_damaged,
    open_sqlite,
    read_inode,
    remove_sqlite,
    transaction,
)

FILE_NAME = "replies.sqlite"
CLOSE_TIMEOUT_S = 5.0
WATCH_S = 1.0  # how often it is looked for what other servers have written; arbitrary

_SCHEMA = """
DROP TABLE IF EXISTS replies;
CREATE TABLE replies (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- the oldest first
    digest BLOB NOT NULL UNIQUE,            -- of what follows, checked when it is read
    meaning BLOB NOT NULL,
    bare BLOB NOT NULL,
    place BLOB NOT NULL,                    -- the history key
    opening BLOB NOT NULL,                  -- the generation prompt, in UTF-8
    reasoning BLOB NOT NULL,                -- in UTF-8
    ids BLOB NOT NULL,                      -- JSON list of strings
    tokens BLOB NOT NULL,                   -- int32, little-endian
    num_bytes INTEGER NOT NULL              -- about what it takes
);
CREATE INDEX replies_by_place ON replies (place);
"""
FORMAT = SqliteFormat(
    application_id=0x4D505252,  # "MPRR"
    version=2,  # 1 had no ids: what it knew is sampled again
    schema=_SCHEMA,
    oldest_readable=2,
    probe="SELECT 1 FROM replies LIMIT 1",
    busy_timeout_s=5.0,
)
COLUMNS = ("meaning", "bare", "place", "opening", "reasoning", "ids", "tokens")
UNUSABLE = (OSError, sqlite3.Error, DiskCacheUnusable)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forget:
    """What was sampled after these beginnings of conversations has to go; None: all replies."""

    history_keys: tuple[bytes, ...] | None


class ReplyDisk:
    """Fills a store from disk, and writes down what is added to it and forgotten on demand."""

    def __init__(
        self, store: ReplyStore, max_bytes: int = MAX_BYTES, watch_s: float = WATCH_S
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._watch_s = watch_s
        self._changes: queue.SimpleQueue[KeptReply | Forget | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, folder: Path) -> None:
        """Read what earlier runs have left in a folder, and write there from now on.

        What other servers write there meanwhile is read as well. Does nothing when it is open.
        """
        if self._thread is not None:
            return
        path = folder / FILE_NAME
        try:
            file = _ReplyFile(path)
            for reply in file.read_new():
                self._store.add_reply(reply)
        except UNUSABLE as error:
            logger.warning("replies are not kept on disk: %s cannot be used: %s", path, error)
            return
        self._store.on_add = self._note_added
        self._thread = threading.Thread(
            target=self._write_and_watch, args=(file,), name="replies", daemon=True
        )
        self._thread.start()

    def forget_histories(self, history_keys: tuple[bytes, ...] | None) -> None:
        """Remove what was sampled after these beginnings of conversations; None: everything."""
        if self._thread is not None:
            self._changes.put(Forget(history_keys))

    def close(self) -> None:
        """Write what is left and end the thread."""
        if self._thread is not None:
            self._store.on_add = None
            self._changes.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _note_added(self, reply: KeptReply) -> None:
        if threading.current_thread() is not self._thread:  # else it was read from the file
            self._changes.put(reply)

    def _write_and_watch(self, file: _ReplyFile) -> None:
        while True:
            try:
                change = self._changes.get(timeout=self._watch_s)
            except queue.Empty:
                self._read_new(file)
                continue
            if change is None:
                break
            try:
                file.write(change, self._max_bytes)
            except UNUSABLE as error:
                logger.warning("a reply is not kept on disk: %s", error)
        file.close()

    def _read_new(self, file: _ReplyFile) -> None:
        epoch = self._store.epoch  # what is forgotten while it is read stays forgotten
        try:
            for reply in file.read_new():
                self._store.add_reply(reply, epoch)
        except UNUSABLE as error:
            logger.debug("replies of other servers cannot be read: %s", error)


class _ReplyFile:
    """A connection to the file; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _open_anew_if_damaged(path)
        self._inode = read_inode(path)
        self._version = -1  # of the file when all of it had been read
        self._last_id = 0  # that was read

    def read_new(self) -> Iterator[KeptReply]:
        """Yield the replies that were written since the last call, by whomever; all at first."""
        if read_inode(self._path) != self._inode:  # purged: what is written next makes it anew
            return
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:  # no other connection has committed
            return
        for number, reply in _load(self._connection, self._last_id):
            self._last_id = number
            if reply is not None:
                yield reply
        self._version = version

    def write(self, change: KeptReply | Forget, max_bytes: int) -> None:
        """Carry out a change, in a new file if this one was purged."""
        if read_inode(self._path) != self._inode:
            self._connection.close()
            self._connection = _open_anew_if_damaged(self._path)
            self._inode = read_inode(self._path)
            self._version, self._last_id = -1, 0
        _apply(self._connection, change, max_bytes)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _open_anew_if_damaged(path: Path) -> sqlite3.Connection:
    """Open the file, made if it is missing, and made anew if it is damaged."""
    return open_anew_if_damaged(path, _open_checked, remove_sqlite)


def _open_checked(path: Path) -> sqlite3.Connection:
    connection = open_sqlite(path, FORMAT)
    try:
        check_sound(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _load(connection: sqlite3.Connection, last_id: int) -> Iterator[tuple[int, KeptReply | None]]:
    """Yield what was written after a row; None for one that is not as it was written."""
    rows = connection.execute(
        f"SELECT id, digest, {', '.join(COLUMNS)} FROM replies WHERE id > ? ORDER BY id", (last_id,)
    )
    for number, digest, *values in rows:
        if _digest(values) != digest:
            yield number, None
            continue
        meaning, bare, history_key, generation_prompt, reasoning, ids, tokens = values
        reply = KeptReply(
            tokens=_parse_tokens(tokens),
            generation_prompt=_parse_text(generation_prompt),
            meaning=meaning,
            bare=bare,
            history_key=history_key,
            reasoning=_parse_text(reasoning),
            ids=tuple(json.loads(ids)),
        )
        yield number, reply


def _apply(connection: sqlite3.Connection, change: KeptReply | Forget, max_bytes: int) -> None:
    with transaction(connection):
        if isinstance(change, KeptReply):
            _save(connection, change, max_bytes)
        elif change.history_keys is None:
            connection.execute("DELETE FROM replies")
        else:
            keys = [(key,) for key in change.history_keys]
            connection.executemany("DELETE FROM replies WHERE place = ?", keys)
    if isinstance(change, Forget):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log has the old pages


def _save(connection: sqlite3.Connection, reply: KeptReply, max_bytes: int) -> None:
    """Add a reply, and remove the oldest so that the rest stays below a size."""
    values = (
        *(reply.meaning, reply.bare, reply.history_key),
        *(_encode_text(reply.generation_prompt), _encode_text(reply.reasoning)),
        json.dumps(reply.ids).encode(),
        _encode_tokens(reply.tokens),
    )
    connection.execute(
        f"INSERT OR IGNORE INTO replies (digest, num_bytes, {', '.join(COLUMNS)}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (_digest(values), reply.num_bytes, *values),
    )
    (total,) = connection.execute("SELECT TOTAL(num_bytes) FROM replies").fetchone()
    while total > max_bytes:
        row = connection.execute("SELECT id, num_bytes FROM replies ORDER BY id").fetchone()
        connection.execute("DELETE FROM replies WHERE id = ?", row[:1])
        total -= row[1]


def _digest(values: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256(usedforsecurity=False)
    for value in values:
        digest.update(len(value).to_bytes(8, "little") + value)
    return digest.digest()[:DIGEST_BYTES]


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _parse_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _encode_tokens(tokens: array[int]) -> bytes:
    return _little_endian(tokens).tobytes()


def _parse_tokens(data: bytes) -> array[int]:
    tokens = array("i")
    tokens.frombytes(data)
    return _little_endian(tokens)


def _little_endian(tokens: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return tokens
    swapped = tokens[:]
    swapped.byteswap()
    return swapped

"""Keeps the sampled replies of a model on disk, for later runs (docs/disk-format.md).

    <cache folder>/<fingerprint>/replies.sqlite

Without it the states on disk would be of use up to the first token only that no tokenizer makes.
Read once, when the model is loaded; written by a thread of its own. A file that cannot be used is
logged, and the server goes on without it: a reply that is not known costs time and nothing else.
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

    def __init__(self, store: ReplyStore, max_bytes: int = MAX_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._changes: queue.SimpleQueue[KeptReply | Forget | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, folder: Path) -> None:
        """Read what earlier runs have left in a folder, and write there from now on.

        Does nothing when it is open.
        """
        if self._thread is not None:
            return
        path = folder / FILE_NAME
        try:
            connection = _open_anew_if_damaged(path)
            for reply in _load(connection):
                self._store.add_reply(reply)
        except UNUSABLE as error:
            logger.warning("replies are not kept on disk: %s cannot be used: %s", path, error)
            return
        self._store.on_add = self._changes.put
        self._thread = threading.Thread(
            target=self._write_all,
            args=(path, connection, read_inode(path)),
            name="replies",
            daemon=True,
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

    def _write_all(self, path: Path, connection: sqlite3.Connection, inode: int) -> None:
        while (change := self._changes.get()) is not None:
            try:
                if read_inode(path) != inode:  # it was purged
                    connection.close()
                    connection = _open_anew_if_damaged(path)
                    inode = read_inode(path)
                _apply(connection, change, self._max_bytes)
            except UNUSABLE as error:
                logger.warning("a reply is not kept on disk: %s", error)
        connection.close()


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


def _load(connection: sqlite3.Connection) -> Iterator[KeptReply]:
    """Yield the replies that are as they were written."""
    rows = connection.execute(f"SELECT digest, {', '.join(COLUMNS)} FROM replies ORDER BY id")
    for digest, *values in rows:
        if _digest(values) == digest:
            meaning, bare, history_key, generation_prompt, reasoning, ids, tokens = values
            yield KeptReply(
                tokens=_parse_tokens(tokens),
                generation_prompt=_parse_text(generation_prompt),
                meaning=meaning,
                bare=bare,
                history_key=history_key,
                reasoning=_parse_text(reasoning),
                ids=tuple(json.loads(ids)),
            )


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

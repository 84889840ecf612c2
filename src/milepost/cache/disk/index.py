"""The index of one fingerprint's folder: histories, what is stored of them, and pins; in SQLite.

Histories are a forest of runs. A run goes on from its parent's history at `start`, which may lie
inside the parent, and is never changed or split:

    run 1   [0 .............. 900)
    run 2            [400 ........... 1300)      parent 1: shares [0, 400) with it
    run 3                             [1300 ..)  parent 2

Siblings that begin at the same place differ in their first token, so that each history has one
place. Several processes write: nothing is remembered here between two calls. All methods may raise
`sqlite3.Error`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from milepost.cache.disk.format import (
    HEADER_BYTES,
    KIND_CODES,
    TOKEN_BYTES,
    BlobHeader,
    BlobKind,
    encode_tokens,
    parse_tokens,
)
from milepost.cache.disk.row_checks import (
    IS_VALID_BLOB,
    IS_VALID_PIN,
    IS_VALID_RUN,
    REMOVE_LOST_RUNS,
    ROW_CHECKS,
)
from milepost.cache.disk.stored_forest import (
    NO_RUN,
    StoredBlob,
    StoredForest,
    StoredPin,
    StoredRuns,
)
from milepost.cache.tree import Tokens, shared_length
from milepost.sqlite_files import SqliteFormat, is_sound, open_sqlite, read_inode, transaction

_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- greater than its parent's; never used again
    parent INTEGER NOT NULL,                -- 0: none
    start INTEGER NOT NULL,
    first INTEGER NOT NULL,                 -- token at `start`
    tokens BLOB NOT NULL,                   -- int32, little-endian: [start, …)
    UNIQUE (parent, start, first)
);
CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,                 -- random; names the file
    run INTEGER NOT NULL,                   -- holds the last token of its history
    kind INTEGER NOT NULL,                  -- 1 segment, 2 checkpoint, 3 logits
    name TEXT NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    history BLOB NOT NULL,                  -- checksum of the tokens [0, end)
    checksum BLOB NOT NULL,                 -- of the payload
    last_used_s REAL NOT NULL,
    num_hits INTEGER NOT NULL,
    UNIQUE (history, kind, start)           -- the same content once
);
CREATE INDEX blobs_by_run ON blobs (run);
CREATE TABLE pins (
    run INTEGER NOT NULL, pos INTEGER NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (run, pos)
);
CREATE TABLE days (day INTEGER PRIMARY KEY, num_bytes INTEGER NOT NULL);  -- since 1970: written
"""
FORMAT = SqliteFormat(
    application_id=0x4D504358,  # "MPCX"
    version=2,  # 2: blobs may be logits; the tables are those of 1
    schema=_SCHEMA,
    oldest_readable=1,
    probe="SELECT 1 FROM runs, blobs LIMIT 1",
    busy_timeout_s=10.0,  # transactions take milliseconds; a purge may take longer
)
_BLOB_COLUMNS = (
    'id, run, kind, name, start, "end", num_bytes, history, checksum, last_used_s, num_hits'
)
# The same as the fields of a StoredBlob.
_KIND_NAMES = " ".join(f"WHEN {code} THEN '{kind}'" for kind, code in KIND_CODES.items())
_BLOB_FIELDS = _BLOB_COLUMNS.replace("kind", f"CASE kind {_KIND_NAMES} END")

# Those of the blobs in a JSON list, with all runs above them.
_RUNS_OF_BLOBS = """
WITH RECURSIVE needed (run) AS (
    SELECT run FROM blobs WHERE id IN (SELECT value FROM json_each(?))
    UNION SELECT parent FROM runs JOIN needed ON runs.id = needed.run
)
SELECT run FROM needed
"""


class Use(NamedTuple):
    """That a blob was used: when last, and how often since it was told before."""

    id: int
    last_used_s: float
    num_hits: int


class Index:
    """One connection to the index; of one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._inode = read_inode(path)

    @classmethod
    def open(cls, path: Path) -> Index:
        """Open an index, made if it is missing.

        Raises:
            DiskCacheUnusable: it is of a newer version.
            sqlite3.DatabaseError: it is damaged.
            OSError: it cannot be read or written.
        """
        return cls(path, open_sqlite(path, FORMAT))

    def close(self) -> None:
        """Close the connection."""
        self._inode = -1
        self._connection.close()

    def is_current(self) -> bool:
        """Return whether it is open, and its file still the one at its path."""
        return self._inode == read_inode(self._path) != 0

    def is_sound(self) -> bool:
        """Return whether nothing in the file contradicts itself; reads all of it."""
        return is_sound(self._connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all or nothing; no other process writes meanwhile."""
        with transaction(self._connection):
            yield

    # --- asking --------------------------------------------------------------------------

    def load(self) -> StoredForest:
        """Return all that is known."""
        with self._reading():
            return StoredForest(
                runs=self._runs("TRUE"),
                blobs=self._blobs("TRUE"),
                pins=self._pins(),
            )

    def load_blobs(self, ids: Iterable[int]) -> StoredForest:
        """Return some blobs, the runs of their histories, and all pins."""
        wanted = json.dumps(list(ids))
        with self._reading():
            return StoredForest(
                runs=self._runs(f"id IN ({_RUNS_OF_BLOBS})", wanted),
                blobs=self._blobs("id IN (SELECT value FROM json_each(?))", wanted),
                pins=self._pins(),
            )

    def has_damaged_rows(self) -> bool:
        """Return whether a row holds something of another type than its column; reads all rows."""
        queries = [
            f"SELECT 1 FROM {table} WHERE NOT {check}" for table, check in ROW_CHECKS.items()
        ]
        found = self._connection.execute(" UNION ALL ".join(queries) + " LIMIT 1").fetchone()
        return found is not None

    def data_version(self) -> int:
        """Return a number that changes when another connection commits; reads no page."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def blob_ids(self) -> set[int]:
        """Return the ids of all blobs."""
        return {blob_id for (blob_id,) in self._connection.execute("SELECT id FROM blobs")}

    def find_blob(self, kind: BlobKind, start: int, history: bytes) -> StoredBlob | None:
        """Return what is stored of a history (by its checksum) from `start` to its end."""
        row = self._connection.execute(
            f"SELECT {_BLOB_FIELDS} FROM blobs WHERE history = ? AND kind = ? AND start = ?"
            f" AND {IS_VALID_BLOB}",
            (history, KIND_CODES[kind], start),
        ).fetchone()
        return None if row is None else StoredBlob._make(row)

    def total_bytes(self) -> int:
        """Return the length of all files together."""
        (total,) = self._connection.execute(
            f'SELECT TOTAL(num_bytes + {TOKEN_BYTES} * "end" + {HEADER_BYTES}) FROM blobs'
            " WHERE typeof(num_bytes) = 'integer' AND typeof(\"end\") = 'integer'"
        ).fetchone()
        return int(total)

    def written_bytes(self, day: int) -> int:
        """Return how much all processes wrote on a day."""
        row = self._connection.execute(
            "SELECT num_bytes FROM days WHERE day = ? AND typeof(num_bytes) = 'integer'", (day,)
        )
        return sum(num_bytes for (num_bytes,) in row)

    # --- telling: inside a transaction ---------------------------------------------------

    def add_run(self, tokens: Tokens) -> int:
        """Return the run that holds the last of these tokens; what is missing is added."""
        run, pos = self._descend(tokens)
        if pos == len(tokens):
            return run
        added = self._connection.execute(
            "INSERT INTO runs (parent, start, first, tokens) VALUES (?, ?, ?, ?)",
            (run, pos, int(tokens[pos]), encode_tokens(tokens[pos:])),
        )
        assert added.lastrowid is not None
        return added.lastrowid

    def add_blob(self, header: BlobHeader, run: int, now_s: float) -> StoredBlob:
        """Add the row of a file.

        Raises:
            sqlite3.IntegrityError: the same is stored already.
        """
        blob = StoredBlob(
            *(header.id, run, header.kind, header.name, header.start, header.end),
            *(header.num_bytes, header.history, header.checksum, now_s, 0),
        )
        places = ", ".join("?" * len(blob))
        row = (*blob[:2], KIND_CODES[header.kind], *blob[3:])
        self._connection.execute(f"INSERT INTO blobs ({_BLOB_COLUMNS}) VALUES ({places})", row)
        return blob

    def remove_blobs(self, ids: Iterable[int]) -> None:
        """Remove rows, and the runs that nothing needs any more."""
        for blob_id in ids:
            found = self._connection.execute("SELECT run FROM blobs WHERE id = ?", (blob_id,))
            for (run,) in found.fetchall():
                self._connection.execute("DELETE FROM blobs WHERE id = ?", (blob_id,))
                self._remove_bare_runs(run)

    def add_uses(self, uses: Iterable[Use]) -> None:
        """Note uses; a clock that went back makes nothing older than it was."""
        self._connection.executemany(
            "UPDATE blobs SET last_used_s = max(last_used_s, ?), num_hits = num_hits + ?"
            " WHERE id = ?",
            [(use.last_used_s, use.num_hits, use.id) for use in uses],
        )

    def add_written(self, day: int, num_bytes: int) -> None:
        """Note what was written on a day."""
        self._connection.execute(
            "INSERT INTO days VALUES (?, ?)"
            " ON CONFLICT (day) DO UPDATE SET num_bytes = num_bytes + excluded.num_bytes",
            (day, num_bytes),
        )

    def set_pin(self, tokens: Tokens, kind: str) -> None:
        """Pin the end of a history."""
        self._connection.execute(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?)",
            (self.add_run(tokens), len(tokens), kind),
        )

    def remove_pin(self, tokens: Tokens) -> None:
        """Take back a pin, if there is one."""
        run, pos = self._descend(tokens)
        if pos == len(tokens):
            self._connection.execute("DELETE FROM pins WHERE run = ? AND pos = ?", (run, pos))
            self._remove_bare_runs(run)

    def remove_damaged_rows(self) -> None:
        """Remove them, and what cannot be understood without them."""
        for table, check in ROW_CHECKS.items():
            self._connection.execute(f"DELETE FROM {table} WHERE NOT {check}")
        self._connection.execute(REMOVE_LOST_RUNS)
        for table in ("blobs", "pins"):
            self._connection.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT id FROM runs)")

    def remove_everything(self) -> None:
        """Remove all rows but the count of written bytes."""
        for table in ("blobs", "pins", "runs"):
            self._connection.execute(f"DELETE FROM {table}")

    def vacuum(self) -> None:
        """Leave nothing of removed rows in the files; outside a transaction."""
        self._connection.execute("VACUUM")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- private -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Let several queries see one moment."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _runs(self, condition: str, *arguments: str) -> StoredRuns:
        return StoredRuns.of_rows(
            self._connection.execute(
                "SELECT id, parent, start, tokens FROM runs"
                f" WHERE ({condition}) AND {IS_VALID_RUN} ORDER BY id",
                arguments,
            ).fetchall()
        )

    def _blobs(self, condition: str, *arguments: str) -> list[StoredBlob]:
        rows = self._connection.execute(
            f"SELECT {_BLOB_FIELDS} FROM blobs WHERE ({condition}) AND {IS_VALID_BLOB}", arguments
        )
        return list(map(StoredBlob._make, rows))

    def _pins(self) -> list[StoredPin]:
        rows = self._connection.execute(f"SELECT run, pos, kind FROM pins WHERE {IS_VALID_PIN}")
        return [StoredPin(*row) for row in rows]

    def _descend(self, tokens: Tokens) -> tuple[int, int]:
        """Return the run of the longest known prefix, and its length."""
        run, pos = NO_RUN, 0
        while pos < len(tokens):
            row = self._connection.execute(
                "SELECT id, tokens FROM runs WHERE parent = ? AND start = ? AND first = ?"
                f" AND {IS_VALID_RUN}",
                (run, pos, int(tokens[pos])),
            ).fetchone()
            if row is None:
                break
            run = row[0]
            pos += shared_length(parse_tokens(row[1]), tokens[pos:])
        return run, pos

    def _remove_bare_runs(self, run: int) -> None:
        while run != NO_RUN:
            row = self._connection.execute(
                "SELECT parent FROM runs WHERE id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM blobs WHERE run = ?1)"
                " AND NOT EXISTS (SELECT 1 FROM pins WHERE run = ?1)"
                " AND NOT EXISTS (SELECT 1 FROM runs WHERE parent = ?1)",
                (run,),
            ).fetchone()
            if row is None:
                return
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run,))
            run = row[0]

"""What the disk holds, as records: enough to make the tree again without reading a blob.

A *run* is a run of tokens that one conversation added to a known history: an edge of the radix tree
as it was when it was written, which is never split on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from milepost.cache.disk.format import TOKEN_BYTES, BlobKind, file_bytes, parse_tokens
from milepost.cache.tree import Tokens

NO_RUN = 0


class StoredBlob(NamedTuple):
    """A segment or checkpoint on disk, or the logits after a prompt."""

    id: int
    run: int  # holds the last token of its history
    kind: BlobKind
    name: str  # of a checkpoint: its kind; of others: ""
    start: int  # of a checkpoint or logits 0
    end: int  # of these their position
    num_bytes: int  # of the payload
    history: bytes  # checksum of the tokens [0, end)
    checksum: bytes  # of the payload
    last_used_s: float
    num_hits: int

    @property
    def file_bytes(self) -> int:
        """The length of its file."""
        return file_bytes(self.end, self.num_bytes)


class StoredPin(NamedTuple):
    """A pinned end of a history."""

    run: int
    pos: int
    kind: str


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Runs in the order of their ids: parents come before their children.

    Lists and not arrays, for they are asked for one number at a time.
    """

    ids: Sequence[int]
    parents: Sequence[int]  # ids; NO_RUN has none
    starts: Sequence[int]
    encoded: Sequence[bytes]  # tokens
    positions: dict[int, int]  # of the ids in these lists
    ends: dict[int, int]  # by id: the length of the history

    @classmethod
    def of_rows(cls, rows: list[tuple[int, int, int, bytes]]) -> StoredRuns:
        """Return the runs of (id, parent, start, tokens) that have a whole history.

        All have, unless the index is damaged in a way that SQLite does not notice.
        """
        ends = {NO_RUN: 0}
        whole = []
        for row in rows:
            run, parent, start, encoded = row
            if 0 <= start <= ends.get(parent, -1):
                ends[run] = start + len(encoded) // TOKEN_BYTES
                whole.append(row)
        columns = zip(*whole, strict=True) if whole else ((), (), (), ())
        ids, parents, starts, pieces = columns
        positions = dict(zip(ids, range(len(ids)), strict=True))
        return cls(ids, parents, starts, pieces, positions, ends)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        """The tokens of all runs, each counted once."""
        return sum(map(len, self.encoded)) // TOKEN_BYTES

    def own_tokens(self, index: int) -> Tokens:
        """Return the tokens of the run at a place of the lists; they cannot be changed."""
        return parse_tokens(self.encoded[index])

    def has(self, run: int, end: int) -> bool:
        """Return whether the tokens [0, end) of a run's history are known; the empty one is not."""
        return 0 < end <= self.ends.get(run, 0)

    def ancestors(self, run: int) -> Iterator[tuple[int, int]]:
        """Yield the runs that a history passes, the nearest first, and where it leaves each.

        Raises KeyError if a run is missing.
        """
        index = self.positions[run]
        cut = self.starts[index]
        while (run := self.parents[index]) != NO_RUN:
            yield run, cut
            index = self.positions[run]
            cut = min(cut, self.starts[index])

    def history(self, run: int, end: int) -> Tokens:
        """Return the tokens [0, end) of a history, read-only; raises as `ancestors`."""
        pieces = []
        while end > 0:
            index = self.positions[run]
            start = self.starts[index]
            if start < end:
                pieces.append(self.encoded[index][: (end - start) * TOKEN_BYTES])
                end = start
            run = self.parents[index]
        return parse_tokens(b"".join(reversed(pieces)))


@dataclass(frozen=True, slots=True)
class StoredForest:
    """Histories, what is stored of them, and what is pinned."""

    runs: StoredRuns
    blobs: list[StoredBlob]  # in no order
    pins: list[StoredPin]

    @classmethod
    def of_nothing(cls) -> StoredForest:
        """Return an empty one."""
        return cls(StoredRuns.of_rows([]), [], [])

"""What the disk holds, as records: enough to grow the tree again without reading a blob."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from milepost.cache.disk_format import BlobKind, file_bytes, parse_tokens
from milepost.cache.tree import Tokens

NO_RUN = 0


class StoredBlob(NamedTuple):
    """A segment or checkpoint on disk."""

    id: int
    run: int  # holds the last token of its history
    kind: BlobKind
    name: str  # of a checkpoint: its kind; of a segment: ""
    start: int  # of a checkpoint 0
    end: int  # of a checkpoint its position
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
    """Runs in the order of their ids: parents come before their children."""

    ids: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int64]  # ids; NO_RUN has none
    starts: npt.NDArray[np.int64]
    tokens: Tokens  # of all runs, one after the other
    offsets: npt.NDArray[np.int64]  # into `tokens`; one more than there are runs

    @classmethod
    def of_rows(cls, rows: list[tuple[int, int, int, bytes]]) -> StoredRuns:
        """Return the runs of (id, parent, start, tokens)."""
        numbers = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
        tokens = parse_tokens(b"".join([row[3] for row in rows]))
        lengths = np.array([len(row[3]) // tokens.itemsize for row in rows], np.int64)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        return cls(numbers[:, 0], numbers[:, 1], numbers[:, 2], tokens, offsets)

    def __len__(self) -> int:
        return len(self.ids)

    def position_of(self, run: int) -> int:
        """Return where a run is in the arrays; raises KeyError."""
        index = int(np.searchsorted(self.ids, run))
        if index == len(self.ids) or self.ids[index] != run:
            raise KeyError(run)
        return index

    def own_tokens(self, index: int) -> Tokens:
        """Return the tokens of the run at a place of the arrays; a view."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def ancestors(self, run: int) -> Iterator[tuple[int, int]]:
        """Yield the runs that a history passes, the nearest first, and where it leaves each."""
        index = self.position_of(run)
        cut = int(self.starts[index])
        while (run := int(self.parents[index])) != NO_RUN:
            yield run, cut
            index = self.position_of(run)
            cut = min(cut, int(self.starts[index]))

    def history(self, run: int, end: int) -> Tokens:
        """Return the tokens [0, end) of a run's history; raises KeyError if a run is missing."""
        tokens = np.empty(end, np.int32)
        while end > 0:
            index = self.position_of(run)
            start = int(self.starts[index])
            tokens[start:end] = self.own_tokens(index)[: end - start]
            run, end = int(self.parents[index]), start
        return tokens


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

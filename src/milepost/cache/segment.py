"""Segments: attention cells of a token range, as opaque bytes.

Segments never overlap along a path and never leave a gap: each goes on where the one before ends.
Two conversations that part inside a segment both refer to it, each to the part it shares:

    tokens      0 ............ 100 ......... 150
    segment     [------------ S ------------)
    edge A      [----- S[0:100) )                   shared
    edge B                     [ S[100:150) )       goes on as before
    edge C                     [------ T ------)    parts at 100, with a segment of its own
"""

from __future__ import annotations

from dataclasses import dataclass

Data = bytes | bytearray | memoryview
NO_BLOB = 0


@dataclass(slots=True, eq=False)
class Segment:
    """The stored cells of the positions [start, end) of one history."""

    start: int
    end: int
    data: Data | None  # None: on disk only
    num_bytes: int
    blob_id: int = NO_BLOB  # of its copy on disk
    is_attached: bool = True  # by the tree

    @property
    def ram_bytes(self) -> int:
        """The bytes that it takes in memory."""
        return self.num_bytes if self.data is not None else 0


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The positions [start, end) of a segment: those that a path shares with it."""

    segment: Segment
    start: int
    end: int


def join_parts(parts: list[SegmentPart]) -> tuple[SegmentPart, ...]:
    """Join neighbours of one segment, so that each segment is loaded once."""
    joined: list[SegmentPart] = []
    for part in parts:
        if joined and joined[-1].segment is part.segment:
            part = SegmentPart(part.segment, joined.pop().start, part.end)
        joined.append(part)
    return tuple(joined)

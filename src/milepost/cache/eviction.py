"""In which order stored things are removed when memory is short: pure, over plain records.

What has the lowest rank goes first; the ranks are the policy's (`eviction_policies`). *Segments*
are needed by all that lies deeper, so only the last ones of a conversation can go, and take the
checkpoints with them that need them. Pinned things go when nothing else is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

CheckpointKey = TypeVar("CheckpointKey")
SegmentKey = TypeVar("SegmentKey")


@dataclass(frozen=True, slots=True)
class CheckpointRecord(Generic[CheckpointKey]):
    """A checkpoint as the policy sees it; shallower ones of its path come before it."""

    key: CheckpointKey
    pos: int
    num_bytes: int
    above: int  # index of the next shallower checkpoint of its path, -1: none
    segment: int  # index of the deepest segment that it needs, -1: none
    returns: float  # expected requests that go on from here or later
    hits: float  # expected requests because it was used before
    is_pinned: bool = False
    last_used: int = 0  # in requests


@dataclass(frozen=True, slots=True)
class SegmentRecord(Generic[SegmentKey]):
    """A segment as the policy sees it; shallower ones of its path come before it."""

    key: SegmentKey
    num_bytes: int
    above: int  # index of the segment that ends where it starts, -1: none
    worth: float  # of itself; next to nothing where a state is needed to go on
    is_pinned: bool = False
    last_used: int = 0  # in requests


@dataclass(frozen=True, slots=True)
class Candidates(Generic[CheckpointKey, SegmentKey]):
    """All that could be evicted."""

    checkpoints: Sequence[CheckpointRecord[CheckpointKey]]
    segments: Sequence[SegmentRecord[SegmentKey]]


@dataclass(slots=True)
class EvictionPlan(Generic[CheckpointKey, SegmentKey]):
    """What to remove. A segment is listed after all that needs it."""

    checkpoints: list[CheckpointKey] = field(default_factory=list)
    segments: list[SegmentKey] = field(default_factory=list)
    num_bytes: int = 0


class EvictionPolicy(Protocol):
    """Ranks things by their indices in `Candidates`; the lowest rank goes first."""

    def rank(self, checkpoint: int) -> float:
        """Rank a checkpoint among all things."""

    def rank_in_path(self, checkpoint: int) -> float:
        """Rank a checkpoint among those of its conversation, whatever its bytes."""

    def rank_segment(self, segment: int, needing: Set[int]) -> float:
        """Rank a last segment together with the checkpoints that need it."""

    def note_removed(self, checkpoint: int) -> set[int]:
        """Learn that a checkpoint is gone; return the others whose rank changed."""


def plan_eviction(
    candidates: Candidates[CheckpointKey, SegmentKey], policy: EvictionPolicy, num_bytes: int
) -> EvictionPlan[CheckpointKey, SegmentKey]:
    """Choose what to remove so that at least so many bytes become free, or everything goes.

    `policy` was made for these candidates, and is used up.
    """
    return _Planner(candidates, policy).plan(num_bytes)


class _Planner(Generic[CheckpointKey, SegmentKey]):
    """Removes the thing of the lowest rank again and again; the ranks of others change each time.

    Things are numbered: checkpoints from 0 on, then segments. An entry of the heap is out of date
    when the version of its thing has moved on.
    """

    def __init__(
        self, candidates: Candidates[CheckpointKey, SegmentKey], policy: EvictionPolicy
    ) -> None:
        self._checkpoints, self._segments = candidates.checkpoints, candidates.segments
        self._policy = policy
        self._needing: list[set[int]] = [set() for _ in candidates.segments]  # checkpoints
        self._num_below = [0] * len(candidates.segments)  # segments that go on from it
        self._versions = [0] * (len(candidates.checkpoints) + len(candidates.segments))
        self._heap: list[tuple[bool, float, int, int]] = []
        self._plan: EvictionPlan[CheckpointKey, SegmentKey] = EvictionPlan()
        for index, checkpoint in enumerate(candidates.checkpoints):
            if checkpoint.segment >= 0:
                self._needing[checkpoint.segment].add(index)
        for segment in candidates.segments:
            if segment.above >= 0:
                self._num_below[segment.above] += 1

    def plan(self, num_bytes: int) -> EvictionPlan[CheckpointKey, SegmentKey]:
        for number in range(len(self._versions)):
            self._push(number)
        while self._plan.num_bytes < num_bytes and self._heap:
            _, _, number, version = heapq.heappop(self._heap)
            if version != self._versions[number]:
                continue
            if number < len(self._checkpoints):
                self._remove_checkpoint(number)
            else:
                self._remove_segment(number - len(self._checkpoints))
        return self._plan

    def _push(self, number: int) -> None:
        """Offer a thing for removal at its present rank; a segment only if it is a last one."""
        self._versions[number] += 1
        if number < len(self._checkpoints):
            rank, is_pinned = self._policy.rank(number), self._checkpoints[number].is_pinned
        else:
            index = number - len(self._checkpoints)
            if self._num_below[index]:
                return
            needing = self._needing[index]
            rank = self._policy.rank_segment(index, needing)
            is_pinned = self._segments[index].is_pinned or any(
                self._checkpoints[i].is_pinned for i in needing
            )
        heapq.heappush(self._heap, (is_pinned, rank, number, self._versions[number]))

    def _remove_checkpoint(self, index: int) -> None:
        record = self._checkpoints[index]
        self._versions[index] += 1
        if record.segment >= 0:
            self._needing[record.segment].discard(index)
        self._plan.checkpoints.append(record.key)
        self._plan.num_bytes += record.num_bytes
        changed = self._policy.note_removed(index)
        segments = {self._checkpoints[i].segment for i in (*changed, index)} - {-1}
        for number in (*changed, *(len(self._checkpoints) + segment for segment in segments)):
            self._push(number)

    def _remove_segment(self, index: int) -> None:
        record = self._segments[index]
        for checkpoint in sorted(self._needing[index], reverse=True):
            self._remove_checkpoint(checkpoint)
        self._versions[len(self._checkpoints) + index] += 1
        self._plan.segments.append(record.key)
        self._plan.num_bytes += record.num_bytes
        if record.above >= 0:
            self._num_below[record.above] -= 1
            self._push(len(self._checkpoints) + record.above)

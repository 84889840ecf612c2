"""Which stored things go first when memory is short: pure functions over plain records.

The worth of a thing is the number of tokens that would have to be computed again, in expectation,
if it were gone; what is worth least per byte goes first.

*Who comes back.* Each leaf of the tree is the tip of a conversation. It is expected to come back
with a rate that falls with its age, and to part from its history at a distance from the tip: mostly
at the tip itself (the next turn), else anywhere, with the same chance for 250 to 500 tokens as for
8,000 to 16,000 (edits, branches, pruned outputs and compactions have no typical distance). Hence

    returns(pos) = sum over the tips below it of rate(age) * (APPENDS + log(1 + (tip - pos) / NEAR))

requests go on from `pos` or later. Those that find nothing deeper than a checkpoint use it:

    uses(c)  = returns(c) - sum of returns(d) over the next deeper checkpoints d + rate * hits(c)
    worth(c) = uses(c) * (c.pos - position of the next shallower checkpoint)

A removed checkpoint leaves its uses to the shallower one. So a conversation that is looked at
alone keeps its last checkpoint longest, and of the others a set whose distances from the tip grow
geometrically: log-spaced thinning follows from the assumption, it is not a rule of its own.

*Segments* are needed by all that lies deeper, so only the last ones of a conversation can go, and
take the checkpoints with them that need them. Pinned things go when nothing else is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]

CheckpointKey = TypeVar("CheckpointKey")
SegmentKey = TypeVar("SegmentKey")

# Tried on traces of coding agents with half of a tight budget: half or twice of any of them changes
# the number of prefilled tokens by less than half a percent.
FRESH_REQUESTS = 0.5  # the latest conversation comes next three times as likely as the one before
APPENDS = 8.0  # most requests of an agent append to its last one
NEAR_TOKENS = 256  # edits nearer to the tip than one message are one place
# States at the end of a conversation that thinning spares: of its last turn there are the boundary
# before the user's message, the end of the prompt and the end of the answer, and one to go back to.
NUM_FRESH_CHECKPOINTS = 4
SYSTEM_END_HITS = 8  # a new conversation starts from there
# The next turn does where the client renders the answer otherwise than it was sampled (reasoning
# stripped, tool calls written anew); the state after the answer is then of no use.
PROMPT_END_HITS = 4
LAST_USER_HITS = 8  # the next user turn does, where the template or the agent changes this one


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


@dataclass(frozen=True, slots=True)
class SegmentRecord(Generic[SegmentKey]):
    """A segment as the policy sees it; shallower ones of its path come before it."""

    key: SegmentKey
    num_bytes: int
    above: int  # index of the segment that ends where it starts, -1: none
    worth: float  # of itself; next to nothing where a state is needed to go on
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Candidates(Generic[CheckpointKey, SegmentKey]):
    """All that is stored."""

    checkpoints: Sequence[CheckpointRecord[CheckpointKey]]
    segments: Sequence[SegmentRecord[SegmentKey]]


@dataclass(slots=True)
class EvictionPlan(Generic[CheckpointKey, SegmentKey]):
    """What to remove. A segment is listed after all that needs it."""

    checkpoints: list[CheckpointKey] = field(default_factory=list)
    segments: list[SegmentKey] = field(default_factory=list)
    num_bytes: int = 0


def usage_rate(age: int) -> float:
    """Return how often per request a thing is expected to be used that was used `age` ago."""
    return 1.0 / (FRESH_REQUESTS + age)


def expected_returns(positions: Sequence[int], tips: Positions, rates: Rates) -> list[float]:
    """Return how often conversations with these tips go on from each position or later."""
    distances = np.maximum(tips - np.array(positions, np.int64)[:, None], 0)
    returns: list[float] = ((APPENDS + np.log1p(distances / NEAR_TOKENS)) @ rates).tolist()
    return returns


def choose_thinned(checkpoints: Sequence[CheckpointRecord[CheckpointKey]]) -> int:
    """Return the index of the least worthy checkpoint of one path, whatever its bytes; not pinned.

    `checkpoints` ascend. The last few are spared: the next turn goes on from one of them, and which
    one depends on how the client renders the answer. Returns -1 if all others are pinned.
    """
    worths = _Worths(checkpoints)
    num_fresh = min(NUM_FRESH_CHECKPOINTS, len(checkpoints) // 2)
    settled = enumerate(checkpoints[: len(checkpoints) - num_fresh])
    free = [index for index, record in settled if not record.is_pinned]
    return min(free, key=worths.of, default=-1)


def plan_eviction(
    candidates: Candidates[CheckpointKey, SegmentKey], num_bytes: int
) -> EvictionPlan[CheckpointKey, SegmentKey]:
    """Choose what to remove so that at least so many bytes become free, or everything goes."""
    return _Planner(candidates).plan(num_bytes)


class _Worths(Generic[CheckpointKey]):
    """The worth of each checkpoint, kept right while checkpoints are removed."""

    def __init__(self, records: Sequence[CheckpointRecord[CheckpointKey]]) -> None:
        self._records = records
        self._above = [record.above for record in records]
        self._below: list[set[int]] = [set() for _ in records]
        self._uses = [record.returns + record.hits for record in records]
        for index, record in enumerate(records):
            if record.above >= 0:
                self._below[record.above].add(index)
                self._uses[record.above] -= record.returns

    def of(self, index: int) -> float:
        """Return the tokens that are expected to be computed again without this checkpoint."""
        return self.from_pos(index, self._pos(self._above[index]))

    def of_all(self, indices: set[int]) -> float:
        """Return the same for some checkpoints that are removed together."""
        return sum(self.from_pos(index, self._base(index, indices)) for index in indices)

    def from_pos(self, index: int, pos: int) -> float:
        """Return the tokens computed again if the requests that use it start from `pos`."""
        return self._uses[index] * (self._records[index].pos - pos)

    def remove(self, index: int) -> set[int]:
        """Take a checkpoint out; return those whose worth changed."""
        above, below = self._above[index], self._below[index]
        for other in below:
            self._above[other] = above
        if above < 0:
            return below
        self._uses[above] += self._uses[index]
        self._below[above] = (self._below[above] - {index}) | below
        return below | {above}

    def _base(self, index: int, indices: set[int]) -> int:
        while index in indices:
            index = self._above[index]
        return self._pos(index)

    def _pos(self, index: int) -> int:
        return self._records[index].pos if index >= 0 else 0


class _Planner(Generic[CheckpointKey, SegmentKey]):
    """Removes the least worthy thing again and again; what is left changes in worth each time.

    Things are numbered: checkpoints from 0 on, then segments. An entry of the heap is out of date
    when the version of its thing has moved on.
    """

    def __init__(self, candidates: Candidates[CheckpointKey, SegmentKey]) -> None:
        self._checkpoints, self._segments = candidates.checkpoints, candidates.segments
        self._worths = _Worths(candidates.checkpoints)
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
        """Offer a thing for removal at its present worth."""
        self._versions[number] += 1
        if number < len(self._checkpoints):
            checkpoint = self._checkpoints[number]
            density = self._worths.of(number) / max(checkpoint.num_bytes, 1)
            is_pinned = checkpoint.is_pinned
        else:
            index = number - len(self._checkpoints)
            if self._num_below[index]:
                return
            density, is_pinned = self._weigh_segment(index)
        heapq.heappush(self._heap, (is_pinned, density, number, self._versions[number]))

    def _weigh_segment(self, index: int) -> tuple[float, bool]:
        """Return the worth per byte of a last segment with its checkpoints, and whether pinned."""
        record, needing = self._segments[index], self._needing[index]
        num_bytes = record.num_bytes + sum(self._checkpoints[i].num_bytes for i in needing)
        worth = record.worth + self._worths.of_all(needing)
        is_pinned = record.is_pinned or any(self._checkpoints[i].is_pinned for i in needing)
        return worth / max(num_bytes, 1), is_pinned

    def _remove_checkpoint(self, index: int) -> None:
        record = self._checkpoints[index]
        self._versions[index] += 1
        if record.segment >= 0:
            self._needing[record.segment].discard(index)
        self._plan.checkpoints.append(record.key)
        self._plan.num_bytes += record.num_bytes
        changed = self._worths.remove(index)
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

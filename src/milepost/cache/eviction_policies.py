"""What is evicted first: the ranks of stored things. Pure.

`WorthPerByte` is what milepost uses. `LeastRecentlyUsed` is what it is measured against
(`benchmarks/eviction_policies.py`).

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from milepost.cache.eviction import Candidates, CheckpointRecord, EvictionPolicy

TipPositions = npt.NDArray[np.int64]  # of shape (num_tips,): lengths of histories
TipRates = npt.NDArray[np.float64]  # of shape (num_tips,): expected uses per request
MakePolicy = Callable[[Candidates[Any, Any]], EvictionPolicy]

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


def usage_rate(age: int) -> float:
    """Return how often per request a thing is expected to be used that was used `age` ago."""
    return 1.0 / (FRESH_REQUESTS + age)


def expected_returns(positions: Sequence[int], tips: TipPositions, rates: TipRates) -> list[float]:
    """Return how often conversations with these tips go on from each position or later."""
    distances = np.maximum(tips - np.array(positions, np.int64)[:, None], 0)
    returns: list[float] = ((APPENDS + np.log1p(distances / NEAR_TOKENS)) @ rates).tolist()
    return returns


def choose_thinned(checkpoints: Sequence[CheckpointRecord[Any]], make_policy: MakePolicy) -> int:
    """Return the index of the first checkpoint of one path to go, whatever its bytes; not pinned.

    `checkpoints` ascend. The last few are spared: the next turn goes on from one of them, and which
    one depends on how the client renders the answer. Returns -1 if all others are pinned.
    """
    policy = make_policy(Candidates(checkpoints, ()))
    num_fresh = min(NUM_FRESH_CHECKPOINTS, len(checkpoints) // 2)
    settled = enumerate(checkpoints[: len(checkpoints) - num_fresh])
    free = [index for index, record in settled if not record.is_pinned]
    return min(free, key=policy.rank_in_path, default=-1)


class WorthPerByte:
    """What saves the fewest tokens per byte goes first.

    The uses of what is removed go over to what is left.
    """

    def __init__(self, candidates: Candidates[Any, Any]) -> None:
        self._segments = candidates.segments
        self._records = records = candidates.checkpoints
        self._above = [record.above for record in records]
        self._below: list[set[int]] = [set() for _ in records]
        self._uses = [record.returns + record.hits for record in records]
        for index, record in enumerate(records):
            if record.above >= 0:
                self._below[record.above].add(index)
                self._uses[record.above] -= record.returns

    def rank(self, index: int) -> float:
        """Return the worth per byte of a checkpoint."""
        return self.rank_in_path(index) / max(self._records[index].num_bytes, 1)

    def rank_in_path(self, index: int) -> float:
        """Return the tokens that are expected to be computed again without this checkpoint."""
        return self._from_pos(index, self._pos(self._above[index]))

    def rank_segment(self, index: int, needing: Set[int]) -> float:
        """Return the worth per byte of a last segment with its checkpoints."""
        record = self._segments[index]
        num_bytes = record.num_bytes + sum(self._records[i].num_bytes for i in needing)
        worth = record.worth + sum(self._from_pos(i, self._base(i, needing)) for i in needing)
        return worth / max(num_bytes, 1)

    def note_removed(self, index: int) -> set[int]:
        """Leave the uses of a checkpoint to the next shallower one."""
        above, below = self._above[index], self._below[index]
        for other in below:
            self._above[other] = above
        if above < 0:
            return below
        self._uses[above] += self._uses[index]
        self._below[above] = (self._below[above] - {index}) | below
        return below | {above}

    def _from_pos(self, index: int, pos: int) -> float:
        """Return the tokens computed again if the requests that use it start from `pos`."""
        return self._uses[index] * (self._records[index].pos - pos)

    def _base(self, index: int, indices: Set[int]) -> int:
        while index in indices:
            index = self._above[index]
        return self._pos(index)

    def _pos(self, index: int) -> int:
        return self._records[index].pos if index >= 0 else 0


class LeastRecentlyUsed:
    """What was computed or restored longest ago goes first."""

    def __init__(self, candidates: Candidates[Any, Any]) -> None:
        self._candidates = candidates

    def rank(self, index: int) -> float:
        """Return when a checkpoint was used."""
        return self._candidates.checkpoints[index].last_used

    def rank_in_path(self, index: int) -> float:
        """Return the same."""
        return self.rank(index)

    def rank_segment(self, index: int, needing: Set[int]) -> float:
        """Return when a segment was used."""
        return self._candidates.segments[index].last_used

    def note_removed(self, index: int) -> set[int]:
        """Change nothing: uses are nobody else's."""
        return set()


POLICIES: dict[str, MakePolicy] = {"worth": WorthPerByte, "lru": LeastRecentlyUsed}

"""What is stored, as plain records for the eviction policy: one pass over the tree.

A segment that several nodes share is one record; its key names the nodes, so that the plan can be
carried out without searching.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from milepost.cache.checkpoint import Checkpoint, CheckpointKind
from milepost.cache.eviction import Candidates, CheckpointRecord, SegmentRecord
from milepost.cache.eviction_policies import (
    LAST_USER_HITS,
    PROMPT_END_HITS,
    SYSTEM_END_HITS,
    TipPositions,
    TipRates,
    expected_returns,
    usage_rate,
)
from milepost.cache.last_use import LastUse
from milepost.cache.segment import NO_BLOB, Segment, SegmentPart
from milepost.cache.traits import CacheTraits
from milepost.cache.tree import Node, Path, Tree

CountBytes = Callable[[Segment | Checkpoint], int]

# Uses that a state can expect for where it is, besides those it has had.
EXPECTED_HITS: dict[CheckpointKind, int] = {
    "last_user": LAST_USER_HITS,
    "prompt_whole": PROMPT_END_HITS,
    "prompt_end": PROMPT_END_HITS,
}
# Cells are of no use without a state, where one is needed. Not zero: the older ones go first.
WITHOUT_STATE = 1e-6


@dataclass(frozen=True, slots=True)
class AttachedCheckpoint:
    """A checkpoint and the node that it is attached to."""

    node: Node
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class AttachedSegment:
    """A segment and the nodes that refer to it, from the shallowest on."""

    segment: Segment
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class _Tips:
    """The leaves of the tree in the order of a walk: each subtree has a run of them."""

    positions: TipPositions
    rates: TipRates
    runs: dict[Node, tuple[int, int]]

    def expected_returns(self, node: Node, positions: list[int]) -> list[float]:
        first, end = self.runs[node]
        return expected_returns(positions, self.positions[first:end], self.rates[first:end])


@dataclass(slots=True)
class _Collector:
    traits: CacheTraits
    now: LastUse
    tips: _Tips
    pinned: set[Segment]
    count_bytes: CountBytes
    checkpoints: list[CheckpointRecord[AttachedCheckpoint]] = field(default_factory=list)
    segments: list[SegmentRecord[AttachedSegment]] = field(default_factory=list)
    # Indices of the deepest checkpoint and segment on the path to the end of a node.
    deepest: dict[Node | None, tuple[int, int]] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Add what a node holds; its parent was added before."""
        above, segment = self.deepest.get(node.parent, (-1, -1))
        parts = list(node.parts)
        returns = self._expected_returns(node)
        for checkpoint in node.checkpoints:
            while parts and parts[0].start < checkpoint.pos:
                segment = self._add_part(node, parts.pop(0), segment)
            record = CheckpointRecord(
                key=AttachedCheckpoint(node, checkpoint),
                pos=checkpoint.pos,
                num_bytes=self.count_bytes(checkpoint),
                above=above,
                segment=segment,
                returns=next(returns),
                hits=self._expected_hits(node, checkpoint),
                is_pinned=checkpoint.pos in node.pins,
                last_used=checkpoint.last_used.num_requests,
            )
            above = len(self.checkpoints)
            self.checkpoints.append(record)
        for part in parts:
            segment = self._add_part(node, part, segment)
        self.deepest[node] = (above, segment)

    def _expected_returns(self, node: Node) -> Iterator[float]:
        positions = [checkpoint.pos for checkpoint in node.checkpoints]
        return iter(self.tips.expected_returns(node, positions) if positions else ())

    def _expected_hits(self, node: Node, checkpoint: Checkpoint) -> float:
        num_hits = checkpoint.num_hits + EXPECTED_HITS.get(checkpoint.kind, 0)
        hits = num_hits * usage_rate(_age(checkpoint.last_used, self.now))
        if checkpoint.kind == "system_end":  # of use as long as any conversation goes through it
            hits += SYSTEM_END_HITS * usage_rate(_age(node.last_used, self.now))
        return hits

    def _add_part(self, node: Node, part: SegmentPart, above: int) -> int:
        if above >= 0 and self.segments[above].key.segment is part.segment:
            self.segments[above].key.nodes.append(node)
            return above
        record = SegmentRecord(
            key=AttachedSegment(part.segment, [node]),
            num_bytes=self.count_bytes(part.segment),
            above=above,
            worth=self._own_worth(node, part),
            is_pinned=part.segment in self.pinned,
            last_used=node.last_used.num_requests,
        )
        self.segments.append(record)
        return len(self.segments) - 1

    def _own_worth(self, node: Node, part: SegmentPart) -> float:
        num_tokens = part.segment.end - part.start
        worth = num_tokens * self.tips.expected_returns(node, [part.start])[0]
        return worth * WITHOUT_STATE if self.traits.has_states else worth


def in_ram(held: Segment | Checkpoint) -> int:
    """Return the bytes that a thing takes in memory."""
    return held.ram_bytes


def on_disk(held: Segment | Checkpoint) -> int:
    """Return the bytes that a thing takes on disk, but for what is written beside it."""
    return held.num_bytes if held.blob_id != NO_BLOB else 0


def eviction_candidates(
    tree: Tree, traits: CacheTraits, now: LastUse, count_bytes: CountBytes = in_ram
) -> Candidates[AttachedCheckpoint, AttachedSegment]:
    """Return a record of all that is attached to a tree, with the bytes of one tier."""
    nodes = list(tree.walk())
    pinned = set() if traits.has_states else _find_pinned(nodes)
    found = _Collector(traits, now, _find_tips(nodes, now), pinned, count_bytes)
    for node in nodes:
        found.add(node)
    return Candidates(found.checkpoints, found.segments)


def path_candidates(
    path: Path, traits: CacheTraits, now: LastUse
) -> list[CheckpointRecord[AttachedCheckpoint]]:
    """Return the checkpoints of one path, weighed without a pass over the tree."""
    found = _Collector(traits, now, _find_tips_beside(path, now), set(), in_ram)
    for node in path.nodes:
        found.add(node)
    return found.checkpoints


def _find_tips(nodes: list[Node], now: LastUse) -> _Tips:
    """Return the leaves among nodes that are in the order of a walk."""
    leaves = [node for node in nodes if not node.children]
    counts: dict[Node, int] = {}
    for node in reversed(nodes):
        counts[node] = sum(counts[child] for child in node.children.values()) or 1
    runs: dict[Node, tuple[int, int]] = {}
    first = 0
    for node in nodes:
        runs[node] = (first, first + counts[node])
        first += not node.children
    return _Tips(
        positions=np.array([leaf.end for leaf in leaves], np.int64),
        rates=np.array([usage_rate(_age(leaf.last_used, now)) for leaf in leaves]),
        runs=runs,
    )


def _find_pinned(nodes: list[Node]) -> set[Segment]:
    """Return the segments that hold the last token before a pin; all before them are needed too."""
    return {
        part.segment
        for node in nodes
        for pos in node.pins
        for part in node.parts
        if part.start < pos <= part.end
    }


def _find_tips_beside(path: Path, now: LastUse) -> _Tips:
    """Return the end of a path as a tip, and the next nodes of the branches that leave it."""
    beside = [
        [child for child in node.children.values() if child is not following]
        for node, following in zip(path.nodes, (*path.nodes[1:], None), strict=True)
    ]
    tips = [*itertools.chain.from_iterable(beside), path.nodes[-1]]
    firsts = itertools.accumulate((len(children) for children in beside), initial=0)
    return _Tips(
        positions=np.array([tip.end for tip in tips], np.int64),
        rates=np.array([usage_rate(_age(tip.last_used, now)) for tip in tips]),
        runs={node: (first, len(tips)) for node, first in zip(path.nodes, firsts, strict=False)},
    )


def _age(last_used: LastUse, now: LastUse) -> int:
    return now.num_requests - last_used.num_requests

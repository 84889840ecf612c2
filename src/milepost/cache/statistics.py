"""What the cache tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.cache.tree import Node, Tree


@dataclass(slots=True)
class CacheCounters:
    """Running totals; each is named like the engine's counter of the same thing, if it has one."""

    num_hits: int = 0  # prompts that found a state to go on from
    num_misses: int = 0
    num_evicted_segments: int = 0  # to stay in the budget
    num_evicted_checkpoints: int = 0  # the same
    num_thinned_checkpoints: int = 0  # too many along one conversation
    num_forgotten_nodes: int = 0  # too many tokens in the tree
    num_dropped_nodes: int = 0  # on demand


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Sizes now, and totals since the start."""

    num_nodes: int
    num_tokens: int
    token_bytes: int
    num_bytes: int  # of segments and checkpoints in memory
    budget_bytes: int
    num_segments: int
    segment_bytes: int
    num_checkpoints: int
    checkpoint_bytes: int
    counters: CacheCounters  # a copy


def recent_nodes(tree: Tree, max_nodes: int) -> list[tuple[int, Node]]:
    """Return the most recently used part of the tree: each node after the index of its parent.

    Parents come first: they are never used less recently than their children. -1 is the root.
    """
    order = sorted(tree.walk(), key=lambda node: (node.last_used, -node.start), reverse=True)
    order = order[:max_nodes]
    index: dict[Node | None, int] = {node: number for number, node in enumerate(order)}
    return [(index.get(node.parent, -1), node) for node in order]

"""What the cache tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.cache.last_use import LastUse
from milepost.cache.tree import Node, Tree


@dataclass(slots=True)
class Counters:
    """Running totals; the facade keeps them."""

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
    num_segments: int
    num_checkpoints: int
    token_bytes: int
    segment_bytes: int
    checkpoint_bytes: int
    budget_bytes: int  # of segments and checkpoints
    counters: Counters  # a copy


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One edge of the tree."""

    parent: int  # index in the summary, -1: the root
    start: int
    end: int
    saved_until: int  # cells are stored for [start, saved_until)
    checkpoints: tuple[tuple[int, str], ...]  # position and kind
    num_bytes: int  # of its checkpoints, and of the segments that start in it
    num_children: int
    num_hits: int
    idle_s: float
    pins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """The most recently used part of the tree, parents first."""

    nodes: tuple[NodeSummary, ...]
    num_omitted: int


def summarise(tree: Tree, max_nodes: int, now: LastUse) -> TreeSummary:
    """Describe the most recently used nodes; a parent is never used less recently than a child."""
    order = sorted(tree.walk(), key=lambda node: (node.last_used, -node.start), reverse=True)[
        :max_nodes
    ]
    index = {node: number for number, node in enumerate(order)}
    nodes = tuple(_summarise_node(node, index, now) for node in order)
    return TreeSummary(nodes, tree.num_nodes - len(nodes))


def _summarise_node(node: Node, index: dict[Node, int], now: LastUse) -> NodeSummary:
    return NodeSummary(
        parent=index.get(node.parent, -1) if node.parent else -1,
        start=node.start,
        end=node.end,
        saved_until=node.saved_until,
        checkpoints=tuple((checkpoint.pos, checkpoint.kind) for checkpoint in node.checkpoints),
        num_bytes=node.num_bytes,
        num_children=len(node.children),
        num_hits=node.num_hits,
        idle_s=now.seconds - node.last_used.seconds,
        pins=tuple(sorted(node.pins)),
    )

"""What always holds for the tree; tests ask after every operation."""

from __future__ import annotations

from milepost.cache.segment import NO_BLOB, Segment
from milepost.cache.traits import CacheTraits
from milepost.cache.tree import Node, Tree


def check_tree(tree: Tree, traits: CacheTraits) -> tuple[int, int, int, int]:
    """Raise AssertionError for a contradiction.

    Returns the number of segments and their bytes, and the same of checkpoints, as counted.
    """
    nodes = list(tree.walk())
    segments: set[Segment] = set()
    for node in nodes:
        _check_edge(node)
        _check_parts(node)
        _check_positions(node, traits)
        assert traits.has_segments or not node.parts
        assert traits.has_states or not node.checkpoints
        segments.update(part.segment for part in node.parts)
        for held in node.contents:
            assert held.is_attached
            assert held.data is not None or held.blob_id != NO_BLOB, "it is nowhere"
    checkpoints = [checkpoint for node in nodes for checkpoint in node.checkpoints]
    assert tree.num_nodes == len(nodes)
    assert tree.num_tokens == sum(len(node.tokens) for node in nodes)
    assert len(segments) == sum(len(node.own_segments) for node in nodes), "a segment has one path"
    return (
        len(segments),
        sum(segment.ram_bytes for segment in segments),
        len(checkpoints),
        sum(checkpoint.ram_bytes for checkpoint in checkpoints),
    )


def _check_edge(node: Node) -> None:
    assert len(node.tokens) > 0
    assert node.tokens.base is None, "a view keeps tokens alive that nobody counts"
    parent = node.parent
    assert parent is not None
    assert parent.children[int(node.tokens[0])] is node
    assert node.start == parent.end
    assert len(node.children) != 1, "an only child is joined to its parent"
    assert parent.parent is None or parent.last_used >= node.last_used


def _check_parts(node: Node) -> None:
    parent, pos = node.parent, node.start
    for part in node.parts:
        assert part.start == pos < part.end <= node.end, "parts follow each other"
        assert part.segment.start <= part.start
        assert part.end <= part.segment.end
        pos = part.end
    assert parent is not None
    assert not node.parts or parent.saved_until == parent.end, "no gap before a stored cell"


def _check_positions(node: Node, traits: CacheTraits) -> None:
    positions = [checkpoint.pos for checkpoint in node.checkpoints]
    assert positions == sorted(set(positions))
    assert not node.evicted & set(positions)
    assert traits.has_states or all(pos > node.saved_until for pos in node.evicted)
    assert all(node.start < pos <= node.end for pos in (*positions, *node.pins, *node.evicted))

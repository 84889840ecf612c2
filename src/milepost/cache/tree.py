"""The radix tree over token arrays: which histories were ever computed, and what is stored of them.

              root
               │ system prompt                    a node is the edge above it: [start, end)
           ┌───┴──────────┐
        session 1      session 2                  children differ in their first token
                       ┌──┴──────┐
                    as sent    edited             a divergence splits an edge

Nodes stand for divergences only: tokens that go on from a leaf lengthen its edge, and an only child
is joined to its parent. So a walk takes as many steps as the path has branches, and compares whole
edges at once.

Keys are int32: token ids, or negative numbers for the positions of media. Nothing here evicts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from milepost.arrays import Tokens as Tokens
from milepost.cache.checkpoint import Checkpoint
from milepost.cache.last_use import LastUse
from milepost.cache.segment import Segment, SegmentPart, join_parts


@dataclass(slots=True, eq=False)
class Node:
    """An edge, and what is stored for its positions.

    `parts` follow each other from `start` without a gap, and are empty unless the parent is covered
    to its end. `checkpoints` ascend and lie in (start, end], like `pins`: a state at a branching
    position belongs to the edge that leads there.
    """

    start: int
    tokens: Tokens  # owned: a view would keep the whole prompt alive that it was cut from
    parent: Node | None
    last_used: LastUse
    children: dict[int, Node] = field(default_factory=dict)  # by first token
    parts: list[SegmentPart] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    pins: dict[int, str] = field(default_factory=dict)  # position -> kind
    num_hits: int = 0  # prompts that went through it
    evicted: set[int] = field(default_factory=set)  # positions that could be restored once

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)

    @property
    def saved_until(self) -> int:
        """The position up to which its cells are stored."""
        return self.parts[-1].end if self.parts else self.start

    @property
    def own_segments(self) -> list[Segment]:
        """The segments that begin here; one that reaches in belongs to the parent."""
        inherited = self.parent.parts[-1].segment if self.parent and self.parent.parts else None
        return [part.segment for part in self.parts if part.segment is not inherited]

    @property
    def contents(self) -> list[Segment | Checkpoint]:
        """The segments that begin here, and the checkpoints."""
        return [*self.own_segments, *self.checkpoints]

    @property
    def num_bytes(self) -> int:
        """The bytes in memory of its checkpoints and of the segments that begin here."""
        return sum(each.ram_bytes for each in self.contents)

    @property
    def is_bare(self) -> bool:
        """Whether it is nothing but the memory of a history."""
        return not self.parts and not self.checkpoints and not self.pins


@dataclass(frozen=True, slots=True)
class Path:
    """The nodes that a history leads through; the last may be matched in part only."""

    nodes: tuple[Node, ...]  # from a child of the root on
    num_tokens: int  # matched

    @property
    def saved_until(self) -> int:
        """The position up to which all cells of the path are stored."""
        saved = 0
        for node in self.nodes:
            saved = node.saved_until
            if saved < node.end:
                break
        return min(saved, self.num_tokens)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The states along the path, ascending."""
        return [
            checkpoint
            for node in self.nodes
            for checkpoint in node.checkpoints
            if checkpoint.pos <= self.num_tokens
        ]

    def node_at(self, pos: int) -> Node:
        """Return the node whose edge leads to a position of the path, 0 excluded."""
        assert 0 < pos <= self.num_tokens
        for node in self.nodes:
            if pos <= node.end:
                break
        return node


class Tree:
    """Histories, and the counts of their nodes and tokens."""

    def __init__(self) -> None:
        self.root = Node(0, np.empty(0, np.int32), None, LastUse(0, 0.0))
        self.num_nodes = 0  # without the root
        self.num_tokens = 0

    def find_path(self, tokens: Tokens) -> Path:
        """Return the path of the longest known prefix."""
        nodes: list[Node] = []
        node, pos = self.root, 0
        while pos < len(tokens):
            child = node.children.get(int(tokens[pos]))
            if child is None:
                break
            shared = shared_length(child.tokens, tokens[pos:])
            nodes.append(child)
            pos += shared
            if shared < len(child.tokens):
                break
            node = child
        return Path(tuple(nodes), pos)

    def find_checkpoint(self, tokens: Tokens) -> Checkpoint | None:
        """Return the state that is kept at the end of these tokens."""
        node = self._find_end(tokens)
        return checkpoint_at(node, len(tokens)) if node else None

    def pin(self, tokens: Tokens, kind: str) -> bool:
        """Mark the end of these tokens; False if it is not known."""
        node = self._find_end(tokens)
        if node is not None:
            node.pins[len(tokens)] = kind
        return node is not None

    def unpin(self, tokens: Tokens) -> bool:
        """Take back a pin; False if there is none."""
        node = self._find_end(tokens)
        return node is not None and node.pins.pop(len(tokens), None) is not None

    def insert(self, tokens: Tokens, now: LastUse) -> Path:
        """Add a history, or what is new of it, and mark it as used; return its path."""
        path = self.find_path(tokens)
        nodes = list(path.nodes)
        if path.num_tokens < len(tokens):
            self._append(nodes, tokens[path.num_tokens :], path.num_tokens, now)
        for node in nodes:
            node.last_used = now
        return Path(tuple(nodes), len(tokens))

    def walk(self, top: Node | None = None) -> Iterator[Node]:
        """Yield a subtree, or every node but the root: parents first, each subtree in one run."""
        stack = [top] if top else list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def oldest_leaves(self) -> Iterator[Node]:
        """Yield leaves to be removed, each before the next is chosen.

        The least recently used come first, but those that hold anything after all others.
        """
        leaves = [node for node in self.walk() if not node.children]
        leaves.sort(key=lambda node: node.last_used)
        holding = []
        for node in leaves:
            if node.is_bare:  # asked late: it may have taken over what its parent held
                yield node
            else:
                holding.append(node)
        yield from holding

    def remove_leaf(self, node: Node) -> None:
        """Take a childless node out; what it holds is the caller's to account for.

        A parent that is left with one child is joined to it and is no longer part of the tree.
        """
        parent = node.parent
        assert parent is not None, "the root stays"
        assert not node.children, "only leaves are removed"
        del parent.children[int(node.tokens[0])]
        node.parent = None  # no cycle may keep its bytes alive
        self.num_nodes -= 1
        self.num_tokens -= len(node.tokens)
        if parent is not self.root and len(parent.children) == 1:
            self._join(parent, *parent.children.values())

    def _find_end(self, tokens: Tokens) -> Node | None:
        """Return the node whose edge leads to the end of these tokens, if all are known."""
        path = self.find_path(tokens)
        return path.node_at(len(tokens)) if 0 < path.num_tokens == len(tokens) else None

    def _append(self, nodes: list[Node], rest: Tokens, pos: int, now: LastUse) -> None:
        """Extend a path that ends at `pos` by tokens that are not in the tree."""
        if nodes and pos < nodes[-1].end:
            nodes[-1] = self._split(nodes[-1], pos)
        tip = nodes[-1] if nodes else self.root
        if tip is self.root or tip.children:
            child = Node(pos, rest.copy(), tip, now)
            tip.children[int(rest[0])] = child
            nodes.append(child)
            self.num_nodes += 1
        else:
            tip.tokens = np.concatenate((tip.tokens, rest))
        self.num_tokens += len(rest)

    def _join(self, upper: Node, lower: Node) -> None:
        """Let an only child take over the edge of its parent."""
        assert upper.parent is not None, "the root has no edge"
        upper.parent.children[int(upper.tokens[0])] = lower
        lower.start, lower.parent = upper.start, upper.parent
        lower.tokens = np.concatenate((upper.tokens, lower.tokens))
        lower.parts = list(join_parts([*upper.parts, *lower.parts]))
        lower.checkpoints = [*upper.checkpoints, *lower.checkpoints]
        lower.pins |= upper.pins
        lower.evicted |= upper.evicted
        upper.parent = None
        upper.children.clear()
        self.num_nodes -= 1

    def _split(self, lower: Node, pos: int) -> Node:
        """Cut an edge at `pos` (inside it) and return the new node of its upper half."""
        parent, cut = lower.parent, pos - lower.start
        assert parent is not None, "the root has no edge"
        assert 0 < cut < len(lower.tokens), "both halves have tokens"
        upper = Node(lower.start, lower.tokens[:cut].copy(), parent, lower.last_used)
        parent.children[int(upper.tokens[0])] = upper
        lower.start, lower.tokens, lower.parent = pos, lower.tokens[cut:].copy(), upper
        upper.children[int(lower.tokens[0])] = lower
        upper.parts, lower.parts = split_parts(lower.parts, pos)
        num_above = bisect_right(lower.checkpoints, pos, key=lambda checkpoint: checkpoint.pos)
        upper.checkpoints = lower.checkpoints[:num_above]
        lower.checkpoints = lower.checkpoints[num_above:]
        upper.pins = {at: kind for at, kind in lower.pins.items() if at <= pos}
        lower.pins = {at: kind for at, kind in lower.pins.items() if at > pos}
        upper.num_hits = lower.num_hits
        upper.evicted = {at for at in lower.evicted if at <= pos}
        lower.evicted -= upper.evicted
        self.num_nodes += 1
        return upper


def checkpoint_at(node: Node, pos: int) -> Checkpoint | None:
    """Return the checkpoint of a node at a position, if there is one."""
    if not node.checkpoints or node.checkpoints[-1].pos < pos:
        return None
    index = bisect_left(node.checkpoints, pos, key=lambda checkpoint: checkpoint.pos)
    found = node.checkpoints[index : index + 1]
    return found[0] if found and found[0].pos == pos else None


def shared_length(left: Tokens, right: Tokens) -> int:
    """Return the length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def split_parts(parts: list[SegmentPart], pos: int) -> tuple[list[SegmentPart], list[SegmentPart]]:
    """Divide parts at a position; both sides refer to the segment that reaches across."""
    above = [
        SegmentPart(part.segment, part.start, min(part.end, pos))
        for part in parts
        if part.start < pos
    ]
    below = [
        SegmentPart(part.segment, max(part.start, pos), part.end)
        for part in parts
        if part.end > pos
    ]
    return above, below

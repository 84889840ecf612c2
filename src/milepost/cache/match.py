"""What a prompt finds in the cache: how much of it is known, and where it can go on.

Positions that can be restored end before the last token of the prompt: that token is computed,
because its logits choose the first token of the answer. Who has kept those asks for a prompt that
is longer by one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from milepost.cache.checkpoint import Checkpoint
from milepost.cache.segment import Segment, SegmentPart, join_parts
from milepost.cache.traits import CacheTraits
from milepost.cache.tree import Path, Tokens

# Choices given to the engine; the first one nearly always wins. Each costs a pass over all segments
# of its conversation: 0.1 ms where it has hundreds.
MAX_STORED = 4
# Tokens, for a report that compares it with the prompt. Arbitrary: most conversations are shorter.
MAX_REPLACED = 1 << 16

# Why a position that was computed once cannot be restored.
Missing = Literal[
    "",  # everything that is known can be restored
    "evicted",  # it could, until its bytes had to make room
    "not_saved",  # its cells were never stored
    "no_checkpoint_at",  # no state was kept there
    "window_lost",  # the same, for the cells of a sliding window
]


@dataclass(frozen=True, slots=True)
class StoredState:
    """All that is needed to go on from `pos`.

    `parts` cover [0, pos) in order. Of each segment only the positions of its part may be used:
    what it holds beyond them can belong to another conversation.
    """

    pos: int
    parts: tuple[SegmentPart, ...]
    checkpoint: Checkpoint | None
    num_bytes: int  # to be loaded
    disk_bytes: int = 0  # of these, not in memory

    @property
    def contents(self) -> tuple[Segment | Checkpoint, ...]:
        """All that it is put together from."""
        segments = tuple(part.segment for part in self.parts)
        return segments if self.checkpoint is None else (*segments, self.checkpoint)


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a prompt."""

    num_known: int  # longest prefix that was ever computed, whether or not it can be restored
    divergences: tuple[int, ...]  # ascending: where histories part along it, its own place included
    stored: tuple[StoredState, ...]  # deepest first, at most MAX_STORED
    checkpoints: tuple[Checkpoint, ...]  # the same for states whose cells may only be live
    missing: Missing  # why nothing deeper than `stored[0]` can be restored
    # How the latest history that parts from the prompt goes on, MAX_REPLACED tokens or more; views
    # of the tree as it is now, which never changes the arrays of its edges.
    replaced: tuple[Tokens, ...]


def describe_match(path: Path, num_prompt_tokens: int, traits: CacheTraits) -> Match:
    """Return what a path offers to a prompt of that length."""
    last = min(path.num_tokens, num_prompt_tokens - 1)  # the deepest position of use
    checkpoints = [checkpoint for checkpoint in path.checkpoints[::-1] if checkpoint.pos <= last]
    stored = _find_stored(path, checkpoints, last, traits)
    return Match(
        num_known=path.num_tokens,
        divergences=_find_divergences(path, num_prompt_tokens),
        stored=stored,
        checkpoints=tuple(checkpoints[:MAX_STORED]),
        missing=_explain_missing(path, stored[0].pos if stored else 0, last, traits),
        replaced=_find_replaced(path, num_prompt_tokens),
    )


def _find_divergences(path: Path, num_prompt_tokens: int) -> tuple[int, ...]:
    found = [node.end for node in path.nodes if node.children and node.end <= path.num_tokens]
    parts_here = path.nodes and path.num_tokens < min(path.nodes[-1].end, num_prompt_tokens)
    return (*found, path.num_tokens) if parts_here else tuple(found)


def _find_replaced(path: Path, num_prompt_tokens: int) -> tuple[Tokens, ...]:
    if not path.nodes or path.num_tokens == num_prompt_tokens:
        return ()
    node = path.nodes[-1]
    edges = [node.tokens[path.num_tokens - node.start :]]
    while node.children and node.end - path.num_tokens < MAX_REPLACED:
        node = max(node.children.values(), key=lambda child: child.last_used)
        edges.append(node.tokens)
    return tuple(edge for edge in edges if len(edge))


def _find_stored(
    path: Path, checkpoints: list[Checkpoint], last: int, traits: CacheTraits
) -> tuple[StoredState, ...]:
    saved = min(path.saved_until, last) if traits.has_segments else last
    if not traits.has_states:
        return (_assemble(path, saved, None),) if saved > 0 else ()
    usable = [checkpoint for checkpoint in checkpoints if checkpoint.pos <= saved]
    return tuple(_assemble(path, state.pos, state) for state in usable[:MAX_STORED])


def _assemble(path: Path, pos: int, checkpoint: Checkpoint | None) -> StoredState:
    parts = join_parts(
        [
            SegmentPart(part.segment, part.start, min(part.end, pos))
            for node in path.nodes
            for part in node.parts
            if part.start < pos
        ]
    )
    state = StoredState(pos, parts, checkpoint, 0)
    num_bytes = sum(each.num_bytes for each in state.contents)
    ram_bytes = sum(each.ram_bytes for each in state.contents)
    return dataclasses.replace(state, num_bytes=num_bytes, disk_bytes=num_bytes - ram_bytes)


def _explain_missing(path: Path, found: int, last: int, traits: CacheTraits) -> Missing:
    if found >= last:
        return ""
    # Cells that reached a deeper place held this one too; a state is good for its own place only.
    deepest = last if traits.has_states else max(node.end for node in path.nodes)
    if any(found < pos <= deepest for node in path.nodes for pos in node.evicted):
        return "evicted"
    has_deeper_state = any(found < checkpoint.pos <= last for checkpoint in path.checkpoints)
    if has_deeper_state or not traits.has_states:
        return "not_saved"
    return "window_lost" if traits.kind == "window" else "no_checkpoint_at"

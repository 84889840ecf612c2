"""What a memory kind needs to go on from a position, and how much may be kept.

| kind | attention cells, per token range | state, at exactly that position |
|---|---|---|
| full | needed, and enough: any position before their end can be restored | - |
| window, hybrid | needed | needed |
| recurrent | - | needed, and enough |
"""

from __future__ import annotations

from dataclasses import dataclass

from milepost.kinds import MemoryKind

# A token costs 4 bytes in the tree: 128 MiB. Arbitrary; about 1,200 conversations of 30k tokens.
DEFAULT_MAX_TREE_TOKENS = 1 << 25
# Weighing what is stored looks at every node: about 8 ms for so many that hold nothing (measured).
DEFAULT_MAX_TREE_NODES = 1 << 12


@dataclass(frozen=True, slots=True)
class CacheTraits:
    """What must be stored of a context's memory. At least one of the two."""

    kind: MemoryKind
    has_segments: bool  # attention cells are stored, per token range
    has_states: bool  # going on needs a state that was kept at exactly that position

    @classmethod
    def of_kind(cls, kind: MemoryKind) -> CacheTraits:
        """Return the traits of a memory whose cells and states can be stored apart."""
        return cls(kind, has_segments=kind != "recurrent", has_states=kind != "full")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much may be kept; the engine derives it from flags and the machine."""

    budget_bytes: int  # of segments and checkpoints together
    max_checkpoints: int = 32  # along one conversation; 0: none
    max_tree_tokens: int = DEFAULT_MAX_TREE_TOKENS
    max_tree_nodes: int = DEFAULT_MAX_TREE_NODES

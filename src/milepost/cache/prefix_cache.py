"""The prefix cache of one model: what the engine asks and tells.

It owns the tree, keeps count of the bytes and carries out what the policies decide. It has no clock
(the time of a call is passed in as seconds) and copies no bytes: what is stored belongs to it, and
what a match refers to stays alive as long as the match, whatever is evicted meanwhile.

The engine notes what it has computed, adds the states it kept on the way, and adds the cells of a
sequence when it ends or is evicted from the KV cache. States come first: cells that no state needs
go first when memory is short.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from milepost.cache.checkpoint import Checkpoint, CheckpointKind
from milepost.cache.eviction import EvictionPlan, choose_thinned, plan_eviction
from milepost.cache.eviction_candidates import (
    AttachedCheckpoint,
    AttachedSegment,
    eviction_candidates,
    on_disk,
    path_candidates,
)
from milepost.cache.invariants import check_tree
from milepost.cache.last_use import LastUse
from milepost.cache.match import Match, StoredState, describe_match
from milepost.cache.segment import Data, Segment
from milepost.cache.statistics import CacheStatistics, Counters, TreeSummary, summarise
from milepost.cache.stored_states import StoredStates
from milepost.cache.traits import CacheLimits, CacheTraits
from milepost.cache.tree import Node, Path, Tokens, find_checkpoint

# When the budget is full, this part of it is freed at once: weighing all that is stored takes
# milliseconds, and should not be done for every segment. Arbitrary.
SLACK = 1 / 64
# The same for the tokens of the tree.
TREE_SLACK = 1 / 16
MAX_SUMMARY_NODES = 256


@dataclass(frozen=True, slots=True)
class Evicted:
    """What had to go."""

    num_segments: int = 0
    num_checkpoints: int = 0
    num_bytes: int = 0


class PrefixCache:
    """Which prefixes were computed, and from where each can be taken up again."""

    def __init__(self, traits: CacheTraits, limits: CacheLimits) -> None:
        self.traits = traits
        self.limits = limits
        self.stored = StoredStates(traits)  # for the disk tier
        self._tree = self.stored.tree
        self._counters = Counters()
        self._num_requests = 0  # the clock of the policies

    @property
    def num_bytes(self) -> int:
        """The bytes of all segments and checkpoints in memory."""
        return self.stored.num_bytes

    @property
    def counters(self) -> Counters:
        """The running totals; not a copy."""
        return self._counters

    # --- asking --------------------------------------------------------------------------

    def match(self, prompt: Tokens, now_s: float) -> Match:
        """Return what is known of a prompt, and mark that as used."""
        self._num_requests += 1
        now = self._use_at(now_s)
        path = self._tree.find(_as_key(prompt))
        for node in path.nodes:
            # An edge that is left half way leads to another conversation: not a use of that one.
            if node.end <= path.num_tokens or path.num_tokens == len(prompt):
                node.last_used = now
                node.num_hits += 1
        match = describe_match(path, len(prompt), self.traits)
        if match.stored:
            self._counters.num_hits += 1
        else:
            self._counters.num_misses += 1
        return match

    def peek(self, prompt: Tokens) -> Match:
        """Return what `match` would, without using or counting it."""
        return describe_match(self._tree.find(_as_key(prompt)), len(prompt), self.traits)

    def saved_until(self, tokens: Tokens) -> int:
        """Return up to which position of a history the attention cells are stored."""
        return self._tree.find(_as_key(tokens)).saved_until

    def known_until(self, tokens: Tokens) -> int:
        """Return how much of a history was ever computed; unlike `match` this is no use of it."""
        return self._tree.find(_as_key(tokens)).num_tokens

    def has_checkpoint(self, tokens: Tokens) -> bool:
        """Return whether a state is kept at the end of these tokens."""
        return self.find_checkpoint(tokens) is not None

    def find_checkpoint(self, tokens: Tokens) -> Checkpoint | None:
        """Return the state that is kept at the end of these tokens, without using it."""
        path = self._tree.find(_as_key(tokens))
        if not 0 < path.num_tokens == len(tokens):
            return None
        return find_checkpoint(path.node_at(len(tokens)), len(tokens))

    # --- telling -------------------------------------------------------------------------

    def note(self, tokens: Tokens, now_s: float) -> None:
        """Remember that these tokens were computed, from position 0 on."""
        self._tree.insert(_as_key(tokens), self._use_at(now_s))
        self._forget_oldest()

    def add_segment(self, tokens: Tokens, start: int, data: Data, now_s: float) -> bool:
        """Store the attention cells of [start, len(tokens)) of a history.

        Returns False, and stores nothing, when cells before `start` are missing, when nothing is
        new, or when the budget is too small for it.
        """
        assert self.traits.has_segments
        num_bytes = memoryview(data).nbytes
        if num_bytes > self.limits.budget_bytes:
            return False
        path = self._insert(tokens, now_s)
        if not self.stored.attach_segment(path, Segment(start, len(tokens), data, num_bytes)):
            return False
        self.evict(now_s)
        return True

    def add_checkpoint(
        self, tokens: Tokens, data: Data, kind: CheckpointKind, now_s: float
    ) -> bool:
        """Store the state after these tokens, in place of one that is stored already.

        Returns False, and stores nothing, when the limits leave no room for it.
        """
        assert self.traits.has_states
        path, pos = self._insert(tokens, now_s), len(tokens)
        num_bytes = memoryview(data).nbytes
        if self.limits.max_checkpoints == 0 or num_bytes > self.limits.budget_bytes:
            return False
        self.stored.attach_checkpoint(
            path, Checkpoint(pos, kind, data, num_bytes, self._use_at(now_s))
        )
        self._thin(path, now_s)
        self.evict(now_s)
        return True

    def note_restored(self, state: StoredState, now_s: float) -> None:
        """Remember that a state was used: such a one is likely to be used again."""
        if state.checkpoint is not None:
            state.checkpoint.num_hits += 1
            state.checkpoint.last_used = self._use_at(now_s)

    def pin(self, tokens: Tokens, kind: str) -> bool:
        """Let what is needed to go on after these tokens be evicted last; False if unknown."""
        path = self._tree.find(_as_key(tokens))
        if not 0 < path.num_tokens == len(tokens):
            return False
        path.node_at(len(tokens)).pins[len(tokens)] = kind
        return True

    def unpin(self, tokens: Tokens) -> bool:
        """Take back a pin; False if there is none."""
        path = self._tree.find(_as_key(tokens))
        if not 0 < path.num_tokens == len(tokens):
            return False
        return path.node_at(len(tokens)).pins.pop(len(tokens), None) is not None

    # --- the disk ------------------------------------------------------------------------

    def grow(self, tokens: Tokens, last_used: LastUse) -> Path:
        """Add a history that the disk knows; its path is good until the next one is added."""
        return self._tree.insert(_as_key(tokens), last_used)

    def find(self, tokens: Tokens) -> Path:
        """Return what is known of a history, without using it."""
        return self._tree.find(_as_key(tokens))

    def evict_from_disk(self, num_bytes: int, now_s: float) -> int:
        """Choose what goes from the disk, and return the bytes; what is in memory as well stays."""
        candidates = eviction_candidates(self._tree, self.traits, self._use_at(now_s), on_disk)
        plan = plan_eviction(candidates, num_bytes)
        for attached in plan.checkpoints:
            self.stored.evict_checkpoint_from_disk(attached)
        for attached_segment in plan.segments:
            self.stored.evict_segment_from_disk(attached_segment)
        return plan.num_bytes

    # --- removing ------------------------------------------------------------------------

    def drop(self, tokens: Tokens) -> int:
        """Forget the histories that begin with these tokens; return the bytes that became free.

        What is known of the tokens themselves goes as well, as far as no other history shares it.
        """
        path = self._tree.find(_as_key(tokens))
        num_before = self.num_bytes
        if path.nodes and path.num_tokens == len(tokens):
            self._drop_nodes(list(self._tree.walk(path.nodes[-1])))
        for node in path.nodes[::-1]:
            if node.children or node.end > path.num_tokens:
                break
            self._drop_nodes([node])
        return num_before - self.num_bytes

    def clear(self) -> int:
        """Forget everything; return the bytes that became free."""
        num_before = self.num_bytes
        self._drop_nodes(list(self._tree.walk()))
        return num_before

    def evict(self, now_s: float) -> Evicted:
        """Remove what is worth least until the budget holds; `add_…` do it themselves."""
        excess = self.num_bytes - self.limits.budget_bytes
        if excess <= 0:
            return Evicted()
        slack = int(self.limits.budget_bytes * SLACK)
        excess -= self.stored.demote(excess + slack)
        if excess <= 0:
            return Evicted()
        plan = self.plan_eviction(excess + slack, now_s)
        for attached in plan.checkpoints:
            self.stored.evict_checkpoint(attached)
        for attached_segment in plan.segments:
            self.stored.evict_segment(attached_segment)
        self._counters.num_evicted_checkpoints += len(plan.checkpoints)
        self._counters.num_evicted_segments += len(plan.segments)
        return Evicted(len(plan.segments), len(plan.checkpoints), plan.num_bytes)

    def plan_eviction(
        self, num_bytes: int, now_s: float
    ) -> EvictionPlan[AttachedCheckpoint, AttachedSegment]:
        """Choose what would have to go for so many bytes, and remove nothing."""
        return plan_eviction(
            eviction_candidates(self._tree, self.traits, self._use_at(now_s)), num_bytes
        )

    # --- showing -------------------------------------------------------------------------

    def statistics(self) -> CacheStatistics:
        """Return the sizes and totals."""
        return CacheStatistics(
            num_nodes=self._tree.num_nodes,
            num_tokens=self._tree.num_tokens,
            num_segments=self.stored.num_segments,
            num_checkpoints=self.stored.num_checkpoints,
            token_bytes=self._tree.num_tokens * np.dtype(np.int32).itemsize,
            segment_bytes=self.stored.segment_bytes,
            checkpoint_bytes=self.stored.checkpoint_bytes,
            budget_bytes=self.limits.budget_bytes,
            counters=dataclasses.replace(self._counters),
        )

    def summary(self, now_s: float, max_nodes: int = MAX_SUMMARY_NODES) -> TreeSummary:
        """Return the most recently used part of the tree."""
        return summarise(self._tree, max_nodes, self._use_at(now_s))

    def check_invariants(self) -> None:
        """Raise AssertionError if the tree or the counts contradict themselves; slow."""
        found = check_tree(self._tree, self.traits)
        assert found == (
            self.stored.num_segments,
            self.stored.segment_bytes,
            self.stored.num_checkpoints,
            self.stored.checkpoint_bytes,
        ), f"counted {found}"
        assert self.num_bytes <= self.limits.budget_bytes

    # --- private -------------------------------------------------------------------------

    def _use_at(self, now_s: float) -> LastUse:
        return LastUse(self._num_requests, now_s)

    def _insert(self, tokens: Tokens, now_s: float) -> Path:
        assert len(tokens) > 0, "nothing is stored for position 0"
        return self._tree.insert(_as_key(tokens), self._use_at(now_s))

    def _thin(self, path: Path, now_s: float) -> None:
        """Keep to the number of checkpoints along one conversation."""
        num_held = sum(len(node.checkpoints) for node in path.nodes)
        for _ in range(num_held - self.limits.max_checkpoints):
            records = path_candidates(path, self.traits, self._use_at(now_s))
            index = choose_thinned(records)
            if index < 0:
                return
            self.stored.evict_checkpoint(records[index].key)
            self._counters.num_thinned_checkpoints += 1

    def _forget_oldest(self) -> None:
        """Keep to the size of the tree; what holds nothing goes first."""
        tree, limits = self._tree, self.limits
        if tree.num_tokens <= limits.max_tree_tokens and tree.num_nodes <= limits.max_tree_nodes:
            return
        max_tokens = limits.max_tree_tokens * (1 - TREE_SLACK)
        max_nodes = limits.max_tree_nodes * (1 - TREE_SLACK)
        for node in tree.oldest_leaves():
            if tree.num_tokens <= max_tokens and tree.num_nodes <= max_nodes:
                break
            self.stored.remove_node(node)
            self._counters.num_forgotten_nodes += 1

    def _drop_nodes(self, nodes: list[Node]) -> None:
        """Remove a subtree, given in the order of a walk."""
        for node in reversed(nodes):
            if node.parent is not None:  # else it was joined to its last child, and went with it
                self.stored.remove_node(node)
                self._counters.num_dropped_nodes += 1


def _as_key(tokens: Tokens) -> Tokens:
    """Return the tokens as the tree compares them; a copy only if they are of another type."""
    return np.ascontiguousarray(tokens, dtype=np.int32)

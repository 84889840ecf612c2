"""Keeps memory, disk, tree and the states of one conversation within their limits.

It carries out what `eviction` plans over what `eviction_candidates` collects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milepost.cache.eviction import Candidates, EvictionPlan, plan_eviction
from milepost.cache.eviction_candidates import (
    AttachedCheckpoint,
    AttachedSegment,
    eviction_candidates,
    on_disk,
    path_candidates,
)
from milepost.cache.eviction_policies import MakePolicy, choose_thinned
from milepost.cache.last_use import LastUse
from milepost.cache.statistics import CacheCounters
from milepost.cache.stored_states import StoredStates
from milepost.cache.traits import CacheLimits
from milepost.cache.tree import Node, Path

# When the budget is full, this part of it is freed at once: weighing all that is stored takes
# milliseconds, and should not be done for every segment. Arbitrary.
SLACK = 1 / 64
# The same for the tokens of the tree.
TREE_SLACK = 1 / 16

Plan = EvictionPlan[AttachedCheckpoint, AttachedSegment]


@dataclass(frozen=True, slots=True)
class Evicted:
    """What had to go."""

    num_segments: int = 0
    num_checkpoints: int = 0
    num_bytes: int = 0


class Evictor:
    """Removes from the tree what its limits leave no room for, and counts it."""

    def __init__(
        self,
        stored: StoredStates,
        limits: CacheLimits,
        counters: CacheCounters,
        make_policy: MakePolicy,
    ) -> None:
        self._stored = stored
        self._tree = stored.tree
        self._limits = limits
        self._counters = counters
        self._make_policy = make_policy

    def plan(self, num_bytes: int, now: LastUse) -> Plan:
        """Choose what would have to go from memory for so many bytes, and remove nothing."""
        return self._plan(eviction_candidates(self._tree, self._stored.traits, now), num_bytes)

    def evict_from_ram(self, now: LastUse) -> Evicted:
        """Remove what is worth least until the budget holds; first what the disk has as well."""
        excess = self._stored.num_bytes - self._limits.budget_bytes
        if excess <= 0:
            return Evicted()
        slack = int(self._limits.budget_bytes * SLACK)
        excess -= self._stored.demote(excess + slack)
        if excess <= 0:
            return Evicted()
        plan = self.plan(excess + slack, now)
        for checkpoint in plan.checkpoints:
            self._stored.evict_checkpoint(checkpoint)
        for segment in plan.segments:
            self._stored.evict_segment(segment)
        self._counters.num_evicted_checkpoints += len(plan.checkpoints)
        self._counters.num_evicted_segments += len(plan.segments)
        return Evicted(len(plan.segments), len(plan.checkpoints), plan.num_bytes)

    def evict_from_disk(self, num_bytes: int, now: LastUse) -> int:
        """Choose what goes from the disk, and return the bytes; what is in memory as well stays."""
        candidates = eviction_candidates(self._tree, self._stored.traits, now, on_disk)
        plan = self._plan(candidates, num_bytes)
        for checkpoint in plan.checkpoints:
            self._stored.evict_checkpoint_from_disk(checkpoint)
        for segment in plan.segments:
            self._stored.evict_segment_from_disk(segment)
        return plan.num_bytes

    def thin(self, path: Path, now: LastUse) -> None:
        """Keep to the number of checkpoints along one conversation."""
        num_held = sum(len(node.checkpoints) for node in path.nodes)
        for _ in range(num_held - self._limits.max_checkpoints):
            records = path_candidates(path, self._stored.traits, now)
            index = choose_thinned(records, self._make_policy)
            if index < 0:
                return
            self._stored.evict_checkpoint(records[index].key)
            self._counters.num_thinned_checkpoints += 1

    def forget_oldest(self) -> None:
        """Keep to the size of the tree; what holds nothing goes first."""
        tree, limits = self._tree, self._limits
        if tree.num_tokens <= limits.max_tree_tokens and tree.num_nodes <= limits.max_tree_nodes:
            return
        max_tokens = limits.max_tree_tokens * (1 - TREE_SLACK)
        max_nodes = limits.max_tree_nodes * (1 - TREE_SLACK)
        for node in tree.oldest_leaves():
            if tree.num_tokens <= max_tokens and tree.num_nodes <= max_nodes:
                break
            self._stored.remove_node(node)
            self._counters.num_forgotten_nodes += 1

    def drop(self, nodes: Sequence[Node]) -> None:
        """Remove a subtree on demand, given in the order of a walk."""
        for node in reversed(nodes):
            if node.parent is not None:  # else it was joined to its last child, and went with it
                self._stored.remove_node(node)
                self._counters.num_dropped_nodes += 1

    def _plan(
        self, candidates: Candidates[AttachedCheckpoint, AttachedSegment], num_bytes: int
    ) -> Plan:
        return plan_eviction(candidates, self._make_policy(candidates), num_bytes)

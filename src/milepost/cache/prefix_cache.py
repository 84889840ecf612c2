"""The prefix cache of one model: what the engine asks and tells.

It owns the tree, keeps count of the bytes and carries out what the policies decide. It has no clock
(the time of a call is passed in as seconds) and copies no bytes: what is stored belongs to it, and
what a match refers to stays alive as long as the match, whatever is evicted meanwhile.

The engine notes what it has computed, adds the states it kept on the way, and adds the cells of a
sequence when it ends or is evicted from the KV cache. States come first: cells that no state needs
go first when memory is short.

A disk can be attached below it. Then what a match refers to may be on disk only, until it is read
in; and what was added is written when the engine says so.

Tokens are int32 of shape (n,): ids, or negative numbers for the positions of media items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path as FilePath

import numpy as np

from milepost.cache.checkpoint import Checkpoint, CheckpointKind
from milepost.cache.disk.store import DiskStatistics, DiskStore
from milepost.cache.disk.tier import DiskTier, LoadedTier, PromptEnd
from milepost.cache.eviction_policies import MakePolicy, WorthPerByte
from milepost.cache.evictor import Evicted, Evictor, Plan
from milepost.cache.invariants import check_tree
from milepost.cache.last_use import LastUse
from milepost.cache.match import Match, StoredState, describe_match
from milepost.cache.segment import Data, Segment
from milepost.cache.statistics import CacheCounters, CacheStatistics, recent_nodes
from milepost.cache.stored_states import StoredStates
from milepost.cache.traits import CacheLimits, CacheTraits
from milepost.cache.tree import Node, Path, Tokens

MAX_SUMMARY_NODES = 256


class PrefixCache:
    """Which prefixes were computed, and from where each can be taken up again."""

    def __init__(
        self, traits: CacheTraits, limits: CacheLimits, make_policy: MakePolicy = WorthPerByte
    ) -> None:
        self.traits = traits
        self.limits = limits
        self._stored = StoredStates(traits)
        self._tree = self._stored.tree
        self._counters = CacheCounters()
        self._evictor = Evictor(self._stored, limits, self._counters, make_policy)
        self._num_requests = 0  # the clock of the policies
        self._disk: DiskTier | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of all segments and checkpoints in memory."""
        return self._stored.num_bytes

    @property
    def counters(self) -> CacheCounters:
        """The running totals; not a copy."""
        return self._counters

    # --- asking --------------------------------------------------------------------------

    def match(self, prompt: Tokens, now_s: float) -> Match:
        """Return what is known of a prompt, other processes' part of it too; mark it as used."""
        self._num_requests += 1
        now = self._use_at(now_s)
        self._attach_found(now)
        path = self._tree.find_path(_as_key(prompt))
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
        return describe_match(self._tree.find_path(_as_key(prompt)), len(prompt), self.traits)

    def find_path(self, tokens: Tokens) -> Path:
        """Return what is known of a history, without using it; good until the next addition."""
        return self._tree.find_path(_as_key(tokens))

    def saved_until(self, tokens: Tokens) -> int:
        """Return up to which position of a history the attention cells are stored."""
        return self.find_path(tokens).saved_until

    def known_until(self, tokens: Tokens) -> int:
        """Return how much of a history was ever computed; unlike `match` this is no use of it."""
        return self.find_path(tokens).num_tokens

    def has_checkpoint(self, tokens: Tokens) -> bool:
        """Return whether a state is kept at the end of these tokens."""
        return self._tree.find_checkpoint(_as_key(tokens)) is not None

    # --- telling -------------------------------------------------------------------------

    def note(self, tokens: Tokens, now_s: float) -> None:
        """Remember that these tokens were computed, from position 0 on."""
        self._tree.insert(_as_key(tokens), self._use_at(now_s))
        self._evictor.forget_oldest()

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
        if not self._stored.attach_segment(path, Segment(start, len(tokens), data, num_bytes)):
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
        path, now = self._insert(tokens, now_s), self._use_at(now_s)
        num_bytes = memoryview(data).nbytes
        if self.limits.max_checkpoints == 0 or num_bytes > self.limits.budget_bytes:
            return False
        checkpoint = Checkpoint(len(tokens), kind, data, num_bytes, now)
        self._stored.attach_checkpoint(path, checkpoint)
        self._evictor.thin(path, now)
        self.evict(now_s)
        return True

    def note_restored(self, state: StoredState, now_s: float) -> None:
        """Remember that a state was used: such a one is likely to be used again."""
        if state.checkpoint is not None:
            state.checkpoint.num_hits += 1
            state.checkpoint.last_used = self._use_at(now_s)

    def pin(self, tokens: Tokens, kind: str) -> bool:
        """Let what is needed to go on after these tokens be evicted last; False if unknown."""
        return self._tree.pin(_as_key(tokens), kind)

    def unpin(self, tokens: Tokens) -> bool:
        """Take back a pin; False if there is none."""
        return self._tree.unpin(_as_key(tokens))

    def pin_lastingly(self, tokens: Tokens, kind: str) -> bool:
        """Pin for later runs of the program too."""
        is_known = self.pin(tokens, kind)
        if is_known and self._disk is not None:
            self._disk.pin(tokens, kind)
        return is_known

    def unpin_lastingly(self, tokens: Tokens) -> bool:
        """Take back such a pin; False if memory knows none."""
        if self._disk is not None:
            self._disk.unpin(tokens)
        return self.unpin(tokens)

    # --- removing ------------------------------------------------------------------------

    def drop(self, tokens: Tokens) -> int:
        """Forget the histories that begin with these tokens; return the bytes that became free.

        What is known of the tokens themselves goes as well, as far as no other history shares it.
        """
        path = self.find_path(tokens)
        num_before = self.num_bytes
        if path.nodes and path.num_tokens == len(tokens):
            self._evictor.drop(list(self._tree.walk(path.nodes[-1])))
        for node in path.nodes[::-1]:
            if node.children or node.end > path.num_tokens:
                break
            self._evictor.drop([node])
        return num_before - self.num_bytes

    def drop_all(self) -> int:
        """Forget everything; return the bytes that became free."""
        num_before = self.num_bytes
        self._evictor.drop(list(self._tree.walk()))
        return num_before

    def evict(self, now_s: float) -> Evicted:
        """Remove what is worth least until the budget holds; `add_…` do it themselves."""
        return self._evictor.evict_from_ram(self._use_at(now_s))

    def plan_eviction(self, num_bytes: int, now_s: float) -> Plan:
        """Choose what would have to go for so many bytes, and remove nothing."""
        return self._evictor.plan(num_bytes, self._use_at(now_s))

    # --- the disk ------------------------------------------------------------------------

    def attach_disk(self, store: DiskStore, offset_s: float) -> LoadedTier:
        """Let a disk be below, and the tree know what earlier runs left there; reads no states.

        Once, and before anything is added. `offset_s` is the time of day minus the clock of the
        caller.

        Raises:
            DiskCacheUnusable: the index cannot be read.
        """
        assert self._disk is None, "there is one disk below a cache"
        disk = DiskTier(store, self._stored)
        loaded = disk.load(offset_s)
        self._disk = disk
        return loaded

    @property
    def has_disk(self) -> bool:
        """Whether a disk is attached."""
        return self._disk is not None

    @property
    def disk_folder(self) -> FilePath | None:
        """The folder of this model on disk; None without a disk."""
        return self._disk.folder if self._disk else None

    @property
    def disk_statistics(self) -> DiskStatistics | None:
        """Sizes and totals of the disk; None without one."""
        return self._disk.statistics() if self._disk else None

    @property
    def disk_bytes_per_s(self) -> float:
        """The measured rate of reading; 0 while it is not known."""
        return self._disk.bytes_per_s if self._disk else 0.0

    def read_in(self, contents: Sequence[Segment | Checkpoint]) -> None:
        """Read from disk what memory lacks of these; waits for the disk.

        Raises:
            StoredStateLost: one of them is gone; it is no longer in the tree.
        """
        if self._disk is not None:
            self._disk.read_in(contents)

    def read_ahead(self, state: StoredState) -> None:
        """Begin to read what a state needs, for a request that still waits."""
        if self._disk is not None:
            self._disk.read_ahead(state)

    def read_logits(self, tokens: Tokens) -> Data | None:
        """Read the logits after a prompt that an earlier run answered; None: there are none."""
        return self._disk.read_logits(_as_key(tokens)) if self._disk else None

    def has_unwritten(self, share: float) -> bool:
        """Return whether what the disk lacks takes such a part of the memory's budget."""
        limit = share * self.limits.budget_bytes
        return self.num_bytes >= limit and self._stored.sum_unwritten() >= limit

    def write_history(self, tokens: Tokens, prompt_end: PromptEnd | None = None) -> bool:
        """Have what is known of a history written: its cells, and the states worth it.

        `prompt_end` is in it. Returns False if the queue is full: the rest is to be tried again.
        """
        assert self._disk is not None
        return self._disk.write_history(_as_key(tokens), prompt_end)

    @property
    def is_writing(self) -> bool:
        """Whether anything waits to be written."""
        return self._disk is not None and self._disk.is_writing

    def settle_writes(self, now_s: float) -> None:
        """Note what was written since the last call, and make room on disk where it had none.

        What other processes have stored meanwhile is known from now on.
        """
        if self._disk is None:
            return
        now = self._use_at(now_s)
        if missing_bytes := self._disk.note_written():
            self._evictor.evict_from_disk(missing_bytes, now)
        self._attach_found(now)
        self._disk.remove_dropped()

    def flush_writes(self, now_s: float, timeout_s: float) -> bool:
        """Wait until all that was asked for is written; return whether it was done in time."""
        is_done = self._disk is None or self._disk.flush(timeout_s)
        self.settle_writes(now_s)
        return is_done

    def close_disk(self, timeout_s: float) -> bool:
        """Write what waits, and stop; return whether it was done in time."""
        return self._disk is None or self._disk.close(timeout_s)

    # --- showing -------------------------------------------------------------------------

    def statistics(self) -> CacheStatistics:
        """Return the sizes and totals."""
        return CacheStatistics(
            num_nodes=self._tree.num_nodes,
            num_tokens=self._tree.num_tokens,
            token_bytes=self._tree.num_tokens * np.dtype(np.int32).itemsize,
            num_bytes=self._stored.num_bytes,
            budget_bytes=self.limits.budget_bytes,
            num_segments=self._stored.num_segments,
            segment_bytes=self._stored.segment_bytes,
            num_checkpoints=self._stored.num_checkpoints,
            checkpoint_bytes=self._stored.checkpoint_bytes,
            counters=dataclasses.replace(self._counters),
        )

    def recent_nodes(self, max_nodes: int = MAX_SUMMARY_NODES) -> list[tuple[int, Node]]:
        """Return the most recently used nodes, each after the index of its parent; -1: the root."""
        return recent_nodes(self._tree, max_nodes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the tree or the counts contradict themselves; slow."""
        found = check_tree(self._tree, self.traits)
        counted = (
            self._stored.num_segments,
            self._stored.segment_bytes,
            self._stored.num_checkpoints,
            self._stored.checkpoint_bytes,
        )
        assert found == counted, f"{found} found, {counted} counted"
        assert self.num_bytes <= self.limits.budget_bytes

    # --- private -------------------------------------------------------------------------

    def _use_at(self, now_s: float) -> LastUse:
        return LastUse(self._num_requests, now_s)

    def _attach_found(self, now: LastUse) -> None:
        if self._disk is not None and self._disk.attach_found(now):
            self._evictor.forget_oldest()

    def _insert(self, tokens: Tokens, now_s: float) -> Path:
        assert len(tokens) > 0, "nothing is stored for position 0"
        return self._tree.insert(_as_key(tokens), self._use_at(now_s))


def _as_key(tokens: Tokens) -> Tokens:
    """Return the tokens as the tree compares them; a copy only if they are of another type."""
    return np.ascontiguousarray(tokens, dtype=np.int32)

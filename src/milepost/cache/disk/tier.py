"""Moves segments and checkpoints between the tree and the disk.

The tree holds them all: what has bytes in memory, what has a blob on disk, or both. Along a path
the ones with a blob come first, for they are written from the root on. Called by the engine's loop;
only `read_in` and `close` wait for the disk.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milepost.cache.checkpoint import Checkpoint
from milepost.cache.disk.load_tree import attach_found, load_tree
from milepost.cache.disk.store import DiskStatistics, DiskStore
from milepost.cache.disk.stored_forest import StoredForest
from milepost.cache.disk.writer import Completion
from milepost.cache.last_use import LastUse
from milepost.cache.match import StoredState
from milepost.cache.segment import NO_BLOB, Data, Segment
from milepost.cache.stored_states import StoredStates
from milepost.cache.tree import Node, Path, Tokens
from milepost.errors import StoredStateLost

logger = logging.getLogger(__name__)

# Where a later run will want to go on from a history, besides its last states.
KEPT_KINDS = ("system_end", "date", "divergence", "last_user", "breakpoint")
NUM_LAST_CHECKPOINTS = 2  # the end of the prompt, and of the answer
NUM_LAST_MEDIA = 2  # right before and after the last image, which is often replaced
# Others may take so many times the bytes of the cells between them. Arbitrary: with a hybrid of 27B
# they are 1,200 tokens apart.
MAX_STATE_SHARE = 2.0
BARE_GAP_TOKENS = 2048.0  # where there are no cells to compare with; arbitrary
MAX_WAITING = 16  # finds of other processes that do not fit yet; arbitrary
# When the budget is full, this part of it is freed at once. Arbitrary.
SLACK = 1 / 16


@dataclass(frozen=True, slots=True)
class LoadedTier:
    """What was found on disk at start."""

    num_blobs: int
    num_useless: int  # that fit nowhere, and were removed
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """Where the prompt of a history ended, and the logits that its answer began with."""

    pos: int
    logits: Data


class DiskTier:
    """The disk below one prefix cache."""

    def __init__(self, store: DiskStore, stored: StoredStates) -> None:
        self._store = store
        self._stored = stored
        self._pending: dict[int, Segment | Checkpoint] = {}  # by ticket
        self._pending_logits: dict[int, Checkpoint] = {}  # the states that they belong to
        # Blobs of others that go on from cells which are in memory alone; the latest last.
        self._waiting: list[StoredForest] = []
        self._was_written = False  # something, since those were last tried

    @property
    def bytes_per_s(self) -> float:
        """The measured rate of reading; 0 while it is not known."""
        return self._store.statistics().read_bytes_per_s

    def statistics(self) -> DiskStatistics:
        """Return the sizes and totals."""
        return self._store.statistics()

    def load(self, offset_s: float) -> LoadedTier:
        """Let the tree know what earlier runs left; reads no states.

        `offset_s` is the time of day minus the clock of the tree.

        Raises:
            DiskCacheUnusable: the index cannot be read.
        """
        forest = self._store.load()
        useless = load_tree(forest, self._stored, offset_s)
        self._store.remove(useless)
        return LoadedTier(len(forest.blobs), len(useless), self._store.num_bytes)

    def read_in(self, contents: Sequence[Segment | Checkpoint]) -> None:
        """Read what memory lacks of these.

        Raises:
            StoredStateLost: one of them is gone; it is no longer in the tree.
        """
        missing = [held for held in contents if held.data is None]
        self._store.prefetch(held.blob_id for held in missing)
        for held in missing:
            self._read_one(held)
        self._store.touch(held.blob_id for held in contents if held.blob_id != NO_BLOB)

    def read_logits(self, tokens: Tokens) -> Data | None:
        """Read the logits after a prompt that an earlier run answered; None: there are none."""
        checkpoint = self._stored.tree.find_checkpoint(tokens)
        if checkpoint is None or checkpoint.logits_id == NO_BLOB:
            return None
        try:
            return self._store.read(checkpoint.logits_id)
        except StoredStateLost as error:
            logger.warning("%s", error)
            checkpoint.logits_id = NO_BLOB
            return None

    @property
    def folder(self) -> pathlib.Path:
        """The folder of its fingerprint."""
        return self._store.folder

    @property
    def is_writing(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._pending or self._pending_logits)

    def read_ahead(self, state: StoredState) -> None:
        """Begin to read what a state needs, for a request that still waits."""
        self._store.prefetch(held.blob_id for held in state.contents if held.data is None)

    def write_history(self, tokens: Tokens, prompt_end: PromptEnd | None = None) -> bool:
        """Have what is known of a history written: its cells, and the states worth it.

        `prompt_end` is in it. Returns False if the queue is full: the rest is to be tried again.
        """
        path = self._stored.tree.find_path(tokens)
        if not path.nodes:
            return True
        known = np.concatenate([node.tokens for node in path.nodes])
        waiting = set(self._pending.values())
        for node in path.nodes:
            for segment in node.own_segments:
                if segment.blob_id != NO_BLOB or segment in waiting:
                    continue
                if not self._put(segment, history_of(segment, node, known)):
                    return False
        for checkpoint in choose_saved(path):
            if checkpoint.blob_id != NO_BLOB or checkpoint in waiting:
                continue
            if not self._put(checkpoint, known[: checkpoint.pos]):
                return False
        if prompt_end is not None:
            self._put_logits(tokens[: prompt_end.pos], path, prompt_end.logits)
        return True

    def pin(self, tokens: Tokens, kind: str) -> None:
        """Remember a pin for later runs."""
        self._store.pin(tokens, kind)

    def unpin(self, tokens: Tokens) -> None:
        """Take back a pin."""
        self._store.unpin(tokens)

    def attach_found(self, now: LastUse) -> bool:
        """Let the tree know what other processes have stored since; return whether there was any.

        Where nothing was, this looks at a queue and no more.
        """
        found = [changes.added for changes in self._store.take_changes()]
        if self._was_written:
            found, self._waiting = [*self._waiting, *found], []
            self._was_written = False
        for forest in found:
            if left := attach_found(forest, self._stored, now):
                self._waiting.append(dataclasses.replace(forest, blobs=left, pins=[]))
        del self._waiting[:-MAX_WAITING]
        return bool(found)

    def note_written(self) -> int:
        """Note what was written since the last call; return the bytes to be freed for the rest."""
        completions = self._store.take_completions()
        self._was_written |= bool(completions)
        refused_bytes = sum(map(self._complete, completions))
        budget_bytes = self._store.statistics().budget_bytes
        return refused_bytes + int(budget_bytes * SLACK) if refused_bytes else 0

    def remove_dropped(self) -> None:
        """Have blobs removed that are of no use to the tree any more."""
        if dropped := self._stored.take_dropped_blobs():
            self._store.remove(dropped)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was asked for is written; return whether it was done in time."""
        return self._store.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, and stop; return whether it was done in time."""
        is_done = not self.is_writing or self._store.flush(timeout_s)
        self.note_written()  # what was dropped while it was being written must go again
        self.remove_dropped()
        return self._store.close(timeout_s if is_done else 0.0)

    # --- private -------------------------------------------------------------------------

    def _read_one(self, held: Segment | Checkpoint) -> None:
        try:
            data = self._store.read(held.blob_id)
        except StoredStateLost:
            self._stored.remove_lost(held)
            raise
        self._stored.hold_in_ram(held, data)

    def _put_logits(self, tokens: Tokens, path: Path, logits: Data) -> None:
        """Write the logits of a state that is or will be on disk; earlier ones need not stay."""
        checkpoint = self._stored.tree.find_checkpoint(tokens)
        if checkpoint is None or checkpoint.logits_id != NO_BLOB:
            return
        is_waiting = checkpoint in self._pending.values()
        if checkpoint in self._pending_logits.values() or not (checkpoint.blob_id or is_waiting):
            return
        ticket = self._store.put_logits(tokens, logits)
        if ticket is None:  # only this prompt, sent again, would have needed them
            return
        self._pending_logits[ticket] = checkpoint
        for earlier in path.checkpoints:
            if earlier.pos < checkpoint.pos:
                self._stored.drop_logits(earlier)

    def _put(self, held: Segment | Checkpoint, history: Tokens) -> bool:
        assert held.data is not None, "what is not in memory is on disk"
        if isinstance(held, Segment):
            ticket = self._store.put_segment(history, held.start, held.data)
        else:
            ticket = self._store.put_checkpoint(history, held.kind, held.data)
        if ticket is None:
            return False
        self._pending[ticket] = held
        return True

    def _complete(self, completion: Completion) -> int:
        """Note what became of a put; return the bytes that the budget had no room for."""
        if completion.ticket in self._pending_logits:
            self._complete_logits(self._pending_logits.pop(completion.ticket), completion)
            return 0
        held = self._pending.pop(completion.ticket)
        if completion.blob is None:
            return completion.num_bytes if completion.refusal == "budget" else 0
        if held.is_attached:
            held.blob_id = completion.blob.id
        else:
            self._store.remove([completion.blob.id])
        return 0

    def _complete_logits(self, checkpoint: Checkpoint, completion: Completion) -> None:
        if completion.blob is None:
            return
        if checkpoint.is_attached and checkpoint.blob_id != NO_BLOB:  # the state was written before
            checkpoint.logits_id = completion.blob.id
        else:
            self._store.remove([completion.blob.id])


def history_of(segment: Segment, node: Node, tokens: Tokens) -> Tokens:
    """Return the tokens up to the end of a segment that begins in a node of a path.

    It may reach beyond the path, into the conversation that it was written for. Where that was
    dropped, the tokens end where it left the path: what the cells hold beyond is never used.
    """
    part = next(each for each in node.parts if each.segment is segment)
    pieces = [tokens[: part.end]]
    while part.end == node.end:
        children = node.children.values()
        shared = [each for each in children if each.parts and each.parts[0].segment is segment]
        if not shared:
            break
        node, part = shared[0], shared[0].parts[0]
        pieces.append(node.tokens[: part.end - part.start])
    return np.concatenate(pieces)


def choose_saved(path: Path) -> list[Checkpoint]:
    """Choose the states of a history that are worth a place on disk. Pure.

    Those where later runs will most likely go on, and others for histories that are taken up
    again somewhere in the middle: so far apart that states take no more than a few times the bytes
    of the cells between them.
    """
    checkpoints = path.checkpoints
    last = checkpoints[-NUM_LAST_CHECKPOINTS:]
    last += [held for held in checkpoints if held.kind == "media"][-NUM_LAST_MEDIA:]
    gap = choose_gap(path)
    chosen: list[Checkpoint] = []
    for held in checkpoints:
        is_far = held.pos - (chosen[-1].pos if chosen else 0) >= gap
        if is_far or held.kind in KEPT_KINDS or held in last:
            chosen.append(held)
    return chosen


def choose_gap(path: Path) -> float:
    """Return how many tokens states without a better reason are apart from each other. Pure."""
    segments = [segment for node in path.nodes for segment in node.own_segments]
    num_tokens = sum(segment.end - segment.start for segment in segments)
    num_bytes = sum(segment.num_bytes for segment in segments)
    state_bytes = max((held.num_bytes for held in path.checkpoints), default=0)
    if not num_bytes:
        return BARE_GAP_TOKENS
    return state_bytes * num_tokens / num_bytes / MAX_STATE_SHARE

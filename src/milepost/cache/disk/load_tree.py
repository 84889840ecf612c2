"""Makes the tree of what earlier runs left on disk: records only, no bytes of states.

A server waits for this before it answers, so a conversation of a hundred runs is added at once: its
last run is a tip, and what is stored of the runs above it is collected on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import get_args

from milepost.cache.checkpoint import Checkpoint, CheckpointKind
from milepost.cache.disk.stored_forest import StoredBlob, StoredForest, StoredRuns
from milepost.cache.last_use import LastUse
from milepost.cache.segment import Segment
from milepost.cache.stored_states import StoredStates
from milepost.cache.tree import Node

KINDS: dict[str, CheckpointKind] = {kind: kind for kind in get_args(CheckpointKind)}
LONG_AGO = LastUse(-(1 << 31), 0.0)


@dataclass(frozen=True, slots=True)
class Tip:
    """A run that no other goes on from as far as anything is stored, and the way to it."""

    run: int
    passed: tuple[tuple[int, int], ...]  # the runs above, nearest first, and where it leaves each


@dataclass(frozen=True, slots=True)
class _LoadedTip:
    """The end of a conversation of an earlier run, and the states on the way to it."""

    last_used_s: float  # by the clock of the tree
    node: Node
    checkpoints: list[Checkpoint]


def load_tree(forest: StoredForest, stored: StoredStates, offset_s: float) -> list[int]:
    """Attach blobs to the tree, and return the ids of those that fit nowhere.

    `offset_s` is the time of day minus the clock of the tree.
    """
    loaded: list[_LoadedTip] = []
    useless: list[int] = []
    for run, blobs in gather_blobs(forest):
        segments = [_segment_of(blob) for blob in blobs if blob.kind == "segment"]
        checkpoints = [_checkpoint_of(blob) for blob in blobs if blob.kind == "checkpoint"]
        path = stored.tree.insert(forest.runs.history(run, blobs[-1].end), LONG_AGO)
        # Cells first: no state may be attached after a gap.
        useless += stored.attach_stored_segments(path, segments)
        useless += stored.attach_stored_checkpoints(path, checkpoints)
        logits = {blob.end: blob.id for blob in blobs if blob.kind == "logits"}
        useless += stored.attach_stored_logits(path, logits)
        last_used_s = max(blob.last_used_s for blob in blobs) - offset_s
        loaded.append(_LoadedTip(last_used_s, path.nodes[-1], checkpoints))
    _date(loaded)
    _pin_ends(forest, stored)
    return useless


def attach_found(forest: StoredForest, stored: StoredStates, now: LastUse) -> list[StoredBlob]:
    """Attach what another process has written since; return what has to wait for earlier cells.

    It counts as used now. What the tree has anyway is left alone: it is of use to the other.
    """
    waiting: set[int] = set()
    for run, blobs in gather_blobs(forest):
        segments = [_segment_of(blob) for blob in blobs if blob.kind == "segment"]
        checkpoints = [_checkpoint_of(blob, now) for blob in blobs if blob.kind == "checkpoint"]
        path = stored.tree.insert(forest.runs.history(run, blobs[-1].end), now)
        waiting.update(each.blob_id for each in stored.attach_found_segments(path, segments))
        waiting.update(each.blob_id for each in stored.attach_found_checkpoints(path, checkpoints))
        logits = {blob.end: blob.id for blob in blobs if blob.kind == "logits"}
        stored.attach_stored_logits(path, logits)
    _pin_ends(forest, stored)
    return [blob for blob in forest.blobs if blob.id in waiting]


def gather_blobs(forest: StoredForest) -> Iterator[tuple[int, list[StoredBlob]]]:
    """Yield tips with what lies on the way to each and not on that to an earlier one, ascending.

    Parents first, for a branch may need cells that reach beyond the place where it parts. Those of
    which the history is not known are left alone: an index that is damaged may be made again. Pure.
    """
    left: dict[int, list[StoredBlob]] = {}
    for blob in forest.blobs:
        if not forest.runs.has(blob.run, blob.end):
            continue
        if (blobs := left.get(blob.run)) is None:
            blobs = left[blob.run] = []
        blobs.append(blob)
    ends = {run: max([blob.end for blob in blobs]) for run, blobs in left.items()}
    for tip in choose_tips(forest.runs, ends):
        blobs = left.pop(tip.run)
        for run, cut in tip.passed:
            if run not in left:
                continue
            if ends[run] <= cut:
                blobs += left.pop(run)
            else:
                blobs += [blob for blob in left[run] if blob.end <= cut]
                left[run] = [blob for blob in left[run] if blob.end > cut]
        blobs.sort(key=attrgetter("end"))
        yield tip.run, blobs


def choose_tips(runs: StoredRuns, ends: dict[int, int]) -> list[Tip]:
    """Choose the runs of which the histories pass all that is stored, parents first. Pure.

    `ends` says up to where each run that holds anything is needed.
    """
    passed: dict[int, int] = {}  # up to where later runs need a run
    tips = []
    for run in sorted(ends, reverse=True):
        if ends[run] > passed.get(run, 0):
            tip = Tip(run, tuple(runs.ancestors(run)))
            tips.append(tip)
            for ancestor, cut in tip.passed:
                if cut > passed.get(ancestor, 0):
                    passed[ancestor] = cut
    return tips[::-1]


def _date(loaded: list[_LoadedTip]) -> None:
    """Let conversations of earlier runs be older than all to come, in the order of their use."""
    loaded.sort(key=attrgetter("last_used_s"))
    for age, each in zip(range(len(loaded), 0, -1), loaded, strict=True):
        use = LastUse(-age, each.last_used_s)
        node: Node | None = each.node
        while node is not None and node.parent is not None:
            node.last_used = max(node.last_used, use)
            node = node.parent
        for checkpoint in each.checkpoints:
            checkpoint.last_used = use


def _pin_ends(forest: StoredForest, stored: StoredStates) -> None:
    for pin in [pin for pin in forest.pins if forest.runs.has(pin.run, pin.pos)]:
        stored.tree.pin(forest.runs.history(pin.run, pin.pos), pin.kind)


def _segment_of(blob: StoredBlob) -> Segment:
    return Segment(blob.start, blob.end, None, blob.num_bytes, blob.id)


def _checkpoint_of(blob: StoredBlob, last_used: LastUse = LONG_AGO) -> Checkpoint:
    kind = KINDS.get(blob.name, "chunk")  # "chunk": a kind of another version
    return Checkpoint(blob.end, kind, None, blob.num_bytes, last_used, blob.num_hits, blob.id)

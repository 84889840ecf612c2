"""What is stored: attaches segments and checkpoints to the tree, takes them off, and keeps count.

Decides nothing. A thing has bytes in memory, a blob on disk, or both; what is taken off the tree is
no longer of use on disk either, which is told with `take_dropped_blobs`.
"""

from __future__ import annotations

from bisect import insort

from milepost.cache.checkpoint import Checkpoint
from milepost.cache.eviction_candidates import AttachedCheckpoint, AttachedSegment
from milepost.cache.segment import NO_BLOB, Data, Segment, SegmentPart
from milepost.cache.traits import CacheTraits
from milepost.cache.tree import Node, Path, Tree, checkpoint_at


class StoredStates:
    """Owns the tree and the sums over what is attached to it."""

    def __init__(self, traits: CacheTraits) -> None:
        self.tree = Tree()
        self.num_segments = 0
        self.num_checkpoints = 0
        self.segment_bytes = 0  # in memory, like the next
        self.checkpoint_bytes = 0
        self.traits = traits
        self._dropped_blobs: list[int] = []

    @property
    def num_bytes(self) -> int:
        """The bytes of all segments and checkpoints in memory."""
        return self.segment_bytes + self.checkpoint_bytes

    def sum_unwritten(self) -> int:
        """Return the bytes of all that the disk lacks; looks at every node."""
        contents = (held for node in self.tree.walk() for held in node.contents)
        return sum(held.ram_bytes for held in contents if held.blob_id == NO_BLOB)

    # --- attaching -----------------------------------------------------------------------

    def attach_segment(self, path: Path, segment: Segment) -> bool:
        """Store a segment; False if cells before it are missing, or none of it is new."""
        return self._attach_after(path, path.saved_until, segment)

    def attach_checkpoint(self, path: Path, checkpoint: Checkpoint) -> None:
        """Store a checkpoint, in place of one at the same position."""
        node = path.node_at(checkpoint.pos)
        old = checkpoint_at(node, checkpoint.pos)
        if old is not None:
            checkpoint.num_hits = old.num_hits
            self.remove_checkpoint(node, old)
        self._add_checkpoint(node, checkpoint)

    def attach_stored_segments(self, path: Path, segments: list[Segment]) -> list[int]:
        """Attach segments that are on disk, ascending; return the blobs that do not fit."""
        saved, useless = path.saved_until, []
        for segment in segments:
            if self.traits.has_segments and self._attach_after(path, saved, segment):
                saved = segment.end
            else:
                useless.append(segment.blob_id)
        return useless

    def attach_stored_checkpoints(self, path: Path, checkpoints: list[Checkpoint]) -> list[int]:
        """Do the same with states; one that is there already stays."""
        useless = []
        for checkpoint in checkpoints:
            node = path.node_at(checkpoint.pos)
            if self.traits.has_states and checkpoint_at(node, checkpoint.pos) is None:
                self._add_checkpoint(node, checkpoint)
            else:
                useless.append(checkpoint.blob_id)
        return useless

    def attach_stored_logits(self, path: Path, ids: dict[int, int]) -> list[int]:
        """Let states know the blobs of their logits, by position; return those without one."""
        useless = []
        for pos, blob_id in ids.items():
            checkpoint = checkpoint_at(path.node_at(pos), pos)
            if checkpoint is None or checkpoint.logits_id != NO_BLOB:
                useless.append(blob_id)
            else:
                checkpoint.logits_id = blob_id
        return useless

    def attach_found_segments(self, path: Path, segments: list[Segment]) -> list[Segment]:
        """Attach segments, ascending, that another process has written since; return the rest.

        Cells of which the disk lacks earlier ones have to wait for those: along a path what is on
        disk comes first. What the path has in memory alone is known to be on disk from now on.
        """
        waiting = []
        for segment in segments:
            saved, same = path.saved_until, _find_same(path, segment)
            if same is not None:
                same.blob_id = same.blob_id or segment.blob_id
            elif segment.end > saved and not (
                self.traits.has_segments
                and written_until(path) == saved
                and self._attach_after(path, saved, segment)
            ):
                waiting.append(segment)
        return waiting

    def attach_found_checkpoints(
        self, path: Path, checkpoints: list[Checkpoint]
    ) -> list[Checkpoint]:
        """Do the same with states; their cells come before them."""
        waiting = []
        for checkpoint in checkpoints:
            node = path.node_at(checkpoint.pos)
            same = checkpoint_at(node, checkpoint.pos)
            if same is not None:
                same.blob_id = same.blob_id or checkpoint.blob_id
            elif self.traits.has_segments and written_until(path) < checkpoint.pos:
                waiting.append(checkpoint)
            elif self.traits.has_states:
                self._add_checkpoint(node, checkpoint)
        return waiting

    def hold_in_ram(self, held: Segment | Checkpoint, data: Data) -> None:
        """Keep in memory what was read from disk."""
        if held.is_attached and held.data is None:
            held.data = data
            self._count_bytes(held, held.num_bytes)

    # --- removing ------------------------------------------------------------------------

    def demote(self, num_bytes: int) -> int:
        """Let go from memory what the disk has too, the least recently used first.

        Returns the bytes that became free.
        """
        freed = 0
        for node in sorted(self.tree.walk(), key=lambda node: node.last_used):
            for held in node.contents:
                if freed >= num_bytes:
                    return freed
                if held.data is not None and held.blob_id != NO_BLOB:
                    held.data = None
                    self._count_bytes(held, -held.num_bytes)
                    freed += held.num_bytes
        return freed

    def evict_checkpoint(self, held: AttachedCheckpoint) -> None:
        """Remove a checkpoint and remember that it was there."""
        self.remove_checkpoint(held.node, held.checkpoint)
        held.node.evicted.add(held.checkpoint.pos)

    def evict_segment(self, held: AttachedSegment) -> None:
        """Remove the last segment of a path; what needed it was removed before."""
        if not self.traits.has_states:  # else the checkpoints that needed it were marked
            held.nodes[-1].evicted.add(held.nodes[-1].saved_until)
        for node in held.nodes:
            part = node.parts.pop()
            assert part.segment is held.segment, "only the last segment of a path is evicted"
        self._count_out(held.segment)

    def evict_checkpoint_from_disk(self, held: AttachedCheckpoint) -> None:
        """Remove a checkpoint from the disk; one that is in memory too stays on the tree."""
        if held.checkpoint.data is None and held.checkpoint.is_attached:
            self.evict_checkpoint(held)
        else:
            self._drop_blob(held.checkpoint)
            self.drop_logits(held.checkpoint)

    def evict_segment_from_disk(self, held: AttachedSegment) -> None:
        """Do the same with a segment, and with all that follows it and may not be on disk yet."""
        if held.segment.data is None and held.segment.is_attached:
            self._cut_parts(held.nodes[0], held.segment.start)
        else:
            self._drop_blob(held.segment)

    def remove_lost(self, held: Segment | Checkpoint) -> None:
        """Remove something of which the disk has lost the bytes, and all that needs it."""
        for node in self.tree.walk():
            if held in node.contents:
                break
        else:
            return
        if isinstance(held, Checkpoint):
            self.remove_checkpoint(node, held)
        else:
            self._cut_parts(node, held.start)

    def remove_checkpoint(self, node: Node, checkpoint: Checkpoint) -> None:
        """Take a checkpoint off its node."""
        node.checkpoints.remove(checkpoint)
        checkpoint.is_attached = False
        self.num_checkpoints -= 1
        self.checkpoint_bytes -= checkpoint.ram_bytes
        self._drop_blob(checkpoint)
        self.drop_logits(checkpoint)

    def drop_logits(self, checkpoint: Checkpoint) -> None:
        """Let the logits after a state go from the disk."""
        if checkpoint.logits_id != NO_BLOB:
            self._dropped_blobs.append(checkpoint.logits_id)
            checkpoint.logits_id = NO_BLOB

    def remove_node(self, node: Node) -> None:
        """Take a leaf off the tree, with all that it holds."""
        for checkpoint in list(node.checkpoints):
            self.remove_checkpoint(node, checkpoint)
        for segment in node.own_segments:
            self._count_out(segment)
        self.tree.remove_leaf(node)

    def take_dropped_blobs(self) -> list[int]:
        """Return what is no longer of use on disk since the last call."""
        dropped, self._dropped_blobs = self._dropped_blobs, []
        return dropped

    # --- private -------------------------------------------------------------------------

    def _attach_after(self, path: Path, saved: int, segment: Segment) -> bool:
        """Store a segment of a path of which the cells are stored up to `saved`."""
        if not segment.start <= saved < segment.end:
            return False
        for node in path.nodes:
            part_start, part_end = max(node.start, saved), min(node.end, segment.end)
            if part_start < part_end:
                node.parts.append(SegmentPart(segment, part_start, part_end))
                if not self.traits.has_states:
                    node.evicted = {pos for pos in node.evicted if pos > part_end}
        self.num_segments += 1
        self.segment_bytes += segment.ram_bytes
        return True

    def _add_checkpoint(self, node: Node, checkpoint: Checkpoint) -> None:
        if not node.checkpoints or node.checkpoints[-1].pos < checkpoint.pos:
            node.checkpoints.append(checkpoint)
        else:
            insort(node.checkpoints, checkpoint, key=lambda held: held.pos)
        node.evicted.discard(checkpoint.pos)
        self.num_checkpoints += 1
        self.checkpoint_bytes += checkpoint.ram_bytes

    def _cut_parts(self, top: Node, pos: int) -> None:
        """Remove the segments of a subtree that begin at a position or later, and their states."""
        nodes = list(self.tree.walk(top))
        lost = {part.segment for node in nodes for part in node.parts if part.segment.start >= pos}
        for segment in lost:
            self._count_out(segment)
        for node in nodes:
            node.parts = [part for part in node.parts if part.segment not in lost]
            for checkpoint in [held for held in node.checkpoints if held.pos > pos]:
                self.remove_checkpoint(node, checkpoint)

    def _count_out(self, segment: Segment) -> None:
        segment.is_attached = False
        self.num_segments -= 1
        self.segment_bytes -= segment.ram_bytes
        self._drop_blob(segment)

    def _count_bytes(self, held: Segment | Checkpoint, num_bytes: int) -> None:
        if isinstance(held, Segment):
            self.segment_bytes += num_bytes
        else:
            self.checkpoint_bytes += num_bytes

    def _drop_blob(self, held: Segment | Checkpoint) -> None:
        if held.blob_id != NO_BLOB:
            self._dropped_blobs.append(held.blob_id)
            held.blob_id = NO_BLOB


def written_until(path: Path) -> int:
    """Return up to which position of a path the disk has all cells."""
    written = 0
    for part in (part for node in path.nodes for part in node.parts):
        if part.segment.blob_id == NO_BLOB:
            break
        written = part.end
    return min(written, path.num_tokens)


def _find_same(path: Path, segment: Segment) -> Segment | None:
    """Return the segment of a path with the same cells."""
    for node in path.nodes:
        for part in node.parts:
            known = part.segment
            if known.start == segment.start and known.end == segment.end == part.end:
                return known
    return None

"""Checkpoints: the state of one sequence at one position, as opaque bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from milepost.cache.last_use import LastUse
from milepost.cache.segment import NO_BLOB, Data
from milepost.kinds import BoundaryKind

CheckpointKind = Literal[
    BoundaryKind,
    # where else a later request may stop sharing the prefix
    "divergence",  # the tree has seen one stop there
    "media",  # before or after an image or a piece of audio
    # where a state was at hand
    "chunk",
    "prompt_whole",
    "reply_end",
    "cancelled",
]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The state after the tokens [0, pos) of a history."""

    pos: int
    kind: CheckpointKind
    data: Data | None  # None: on disk only
    num_bytes: int
    last_used: LastUse
    num_hits: int = 0  # how often it was restored
    blob_id: int = NO_BLOB  # of its copy on disk
    is_attached: bool = True  # by the tree
    logits_id: int = NO_BLOB  # of the logits after its last token, if the disk has them

    @property
    def ram_bytes(self) -> int:
        """The bytes that it takes in memory."""
        return self.num_bytes if self.data is not None else 0

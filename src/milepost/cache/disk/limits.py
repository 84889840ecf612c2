"""What the disk cache may use of the disk, and the clocks that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The rest of a volume is for others, and for the file system itself, which slows down when full.
DEFAULT_MAX_VOLUME_SHARE = 0.9
# What waits to be written stays in memory, whatever the RAM tier has evicted. Arbitrary.
DEFAULT_MAX_QUEUE_BYTES = 512 << 20
# Read ahead of its use, and kept until then. Arbitrary.
DEFAULT_MAX_PREFETCH_BYTES = 512 << 20
# How often it is looked whether another process has stored something. Arbitrary: a conversation is
# written some seconds after its turn. A look takes 10 µs where nothing has changed.
DEFAULT_WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """How much may be stored, written and held in memory on the way."""

    budget_bytes: int  # of all files of a fingerprint, whoever wrote them
    max_volume_share: float = DEFAULT_MAX_VOLUME_SHARE  # used by anybody
    max_written_bytes_per_day: int | None = None
    max_queue_bytes: int = DEFAULT_MAX_QUEUE_BYTES
    max_prefetch_bytes: int = DEFAULT_MAX_PREFETCH_BYTES
    watch_s: float = DEFAULT_WATCH_S


@dataclass(frozen=True, slots=True)
class DiskClock:
    """Two clocks: one that is comparable between runs, one that never goes back."""

    wall_s: Callable[[], float]  # seconds since 1970
    steady_s: Callable[[], float]

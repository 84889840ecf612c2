"""Which prefixes are held, where, and what they are worth. Knows tokens and bytes, no llama."""

from milepost.cache.checkpoint import Checkpoint
from milepost.cache.match import Match, Missing, StoredState
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.segment import Segment, SegmentPart
from milepost.cache.traits import CacheLimits, CacheTraits

__all__ = [
    "CacheLimits",
    "CacheTraits",
    "Checkpoint",
    "Match",
    "Missing",
    "PrefixCache",
    "Segment",
    "SegmentPart",
    "StoredState",
]

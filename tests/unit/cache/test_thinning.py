"""Along one conversation only so many states are kept, and the latest ones stay."""

from __future__ import annotations

import numpy as np

from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.traits import CacheLimits, CacheTraits

STEP = 100


def test_the_states_of_the_last_turn_are_never_thinned() -> None:
    cache = PrefixCache(
        CacheTraits.of_kind("recurrent"), CacheLimits(budget_bytes=1 << 20, max_checkpoints=8)
    )
    tokens = np.arange(40 * STEP, dtype=np.int32)
    for turn in range(1, 41):
        cache.add_checkpoint(tokens[: turn * STEP], b"state", "prompt_whole", float(turn))
        for ago in range(min(turn, 4)):
            assert cache.has_checkpoint(tokens[: (turn - ago) * STEP])
    assert cache.statistics().num_checkpoints == 8
    cache.check_invariants()

"""The prefix tree with 1,000 conversations of 30,000 tokens that share their first 4,096.

    python -m benchmarks.prefix_tree [--repeats N] [--conversations N]

No model is loaded. Memory is what the process grows by while the tree is filled. Half of the
prompts that are looked up go on from a conversation, half part from one in the middle. Choosing
what to evict weighs all that is stored; it is done when the budget is full, for every 1/64 of it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import psutil

from benchmarks.report import Row, Run, Target, finish, make_parser, parse_arguments
from milepost.cache import CacheLimits, CacheTraits, PrefixCache
from milepost.cache.tree import Tokens

NUM_TOKENS = 30_000
NUM_SHARED = 4_096
NUM_STATES = 8  # of each conversation
NUM_LOOKED_UP = 200  # in each repeat
MAX_MATCH_MS = 2.0
MAX_TREE_MIB = 200.0
DATA = bytes(64)  # small: the tree is measured, not what hangs on it


def main() -> None:
    """Fill a tree, measure it, and show the table."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--conversations", type=int, default=1000, help="default: %(default)s")
    arguments = parse_arguments(parser)
    num, repeats = arguments.conversations, arguments.repeats
    cache, grown_mib = fill_cache(num)
    rng = random.Random(1)
    matches = [[time_match(cache, rng, num) for _ in range(NUM_LOOKED_UP)] for _ in range(repeats)]
    target = Target("at most", MAX_MATCH_MS)
    rows = [
        Row("memory of the tree", "MiB", (grown_mib,), Target("at most", MAX_TREE_MIB)),
        Row("match, median", "ms", tuple(map(statistics.median, matches)), target),
        Row("match, slowest of 200", "ms", tuple(map(max, matches)), target),
        Row("note a turn", "ms", tuple(time_note(cache, rng, num) for _ in range(repeats))),
        Row("choose evictions", "ms", tuple(time_eviction(cache) for _ in range(repeats))),
    ]
    settings = {"conversations": num, "tokens": NUM_TOKENS, "shared": NUM_SHARED}
    settings["states_per_conversation"] = NUM_STATES
    finish(Run("prefix_tree", arguments.model, settings, arguments.results), rows)


def make_conversation(number: int) -> Tokens:
    """Return the tokens of a conversation; the same for the same number."""
    shared = np.random.default_rng(0).integers(0, 150_000, NUM_SHARED, dtype=np.int32)
    own = np.random.default_rng(number + 1)
    rest = own.integers(0, 150_000, NUM_TOKENS - NUM_SHARED, dtype=np.int32)
    return np.concatenate((shared, rest))


def fill_cache(num_conversations: int) -> tuple[PrefixCache, float]:
    """Return a cache that knows the conversations, and the MiB the process has loaded by."""
    make_conversation(0)  # numpy's own memory is not the tree's
    process = psutil.Process()
    num_before = process.memory_info().rss
    cache = PrefixCache(CacheTraits.of_kind("hybrid"), CacheLimits(budget_bytes=1 << 30))
    for number in range(num_conversations):
        tokens = make_conversation(number)
        cache.note(tokens, float(number))
        for end in range(NUM_SHARED, NUM_TOKENS, (NUM_TOKENS - NUM_SHARED) // NUM_STATES + 1):
            cache.add_checkpoint(tokens[:end], DATA, "message_end", float(number))
        cache.add_segment(tokens, cache.saved_until(tokens), DATA, float(number))
    return cache, (process.memory_info().rss - num_before) / 2**20


def time_match(cache: PrefixCache, rng: random.Random, num_conversations: int) -> float:
    """Return the ms that a prompt takes which goes on from a conversation, or parts from it."""
    tokens = make_conversation(rng.randrange(num_conversations))
    kept = tokens if rng.random() < 0.5 else tokens[: NUM_TOKENS // 2]
    prompt = np.concatenate((kept, np.array([-1, -2, -3], np.int32)))
    return time_ms(lambda: cache.match(prompt, 1e6))


def time_note(cache: PrefixCache, rng: random.Random, num_conversations: int) -> float:
    """Return the ms that 500 more tokens of a conversation take."""
    tokens = make_conversation(rng.randrange(num_conversations))
    history = np.concatenate((tokens, np.arange(500, dtype=np.int32)))
    return time_ms(lambda: cache.note(history, 1e6))


def time_eviction(cache: PrefixCache) -> float:
    """Return the ms that it takes to choose 64 KiB of what is stored, without removing it."""
    return time_ms(lambda: cache.plan_eviction(1 << 16, 1e6))


def time_ms(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    started_s = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - started_s)


if __name__ == "__main__":
    main()

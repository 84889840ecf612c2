"""The cache against the oracle, under random operations, on every memory kind."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from tests.oracles.prefix_oracle import Prefix, PrefixOracle
from tests.soak import in_soak

from milepost.cache import CacheLimits, CacheTraits, Match, PrefixCache
from milepost.cache.checkpoint import Checkpoint, CheckpointKind
from milepost.cache.match import MAX_STORED
from milepost.cache.segment import Segment
from milepost.kinds import MemoryKind

KINDS: tuple[MemoryKind, ...] = ("full", "window", "recurrent", "hybrid")
NUM_STEPS = 150
ROOMY = CacheLimits(budget_bytes=1 << 30, max_checkpoints=1000)
TIGHT = CacheLimits(budget_bytes=240, max_checkpoints=4, max_tree_tokens=120)


def as_array(tokens: Prefix) -> np.ndarray:
    return np.array(tokens, np.int32)


class Walk:
    """Does the same random things to a cache and to the oracle."""

    def __init__(self, traits: CacheTraits, limits: CacheLimits, seed: int) -> None:
        self.traits = traits
        self.cache = PrefixCache(traits, limits)
        self.oracle = PrefixOracle()
        self.random = random.Random(seed)
        self.clock = itertools.count()
        self.histories: list[Prefix] = [(1,)]

    def step(self) -> None:
        tokens, now_s = self.draw_history(), float(next(self.clock))
        operations = [self.note, self.note, self.pin, self.drop]
        operations += [self.add_segment] * 3 * self.traits.has_segments
        operations += [self.add_checkpoint] * 3 * self.traits.has_states
        self.random.choice(operations)(tokens, now_s)
        self.cache.check_invariants()

    def draw_history(self) -> Prefix:
        """Return a known history, shortened and extended at random; three different tokens."""
        base = self.random.choice(self.histories[-12:])
        kept = base[: self.random.randint(0, len(base))] if self.random.random() < 0.5 else base
        more = self.random.choices((1, 2, -3), k=self.random.choice((0, 1, 2, 8)))
        tokens = (*kept, *more)[:40] or (1,)
        self.histories.append(tokens)
        return tokens

    def note(self, tokens: Prefix, now_s: float) -> None:
        self.cache.note(as_array(tokens), now_s)
        self.oracle.note(tokens)

    def add_segment(self, tokens: Prefix, now_s: float) -> None:
        saved = self.cache.saved_until(as_array(tokens))
        start = max(0, saved + self.random.choice((-2, 0, 0, 0, 1)))
        if start < len(tokens):
            data = as_array(tokens[start:]).tobytes()
            self.cache.add_segment(as_array(tokens), start, data, now_s)
            self.oracle.add_segment(tokens, start)

    def add_checkpoint(self, tokens: Prefix, now_s: float) -> None:
        kinds: tuple[CheckpointKind, ...] = ("message_end", "system_end")
        kind = self.random.choice(kinds)
        self.cache.add_checkpoint(as_array(tokens), as_array(tokens).tobytes(), kind, now_s)
        self.oracle.add_checkpoint(tokens)

    def pin(self, tokens: Prefix, now_s: float) -> None:
        if self.random.random() < 0.3:
            self.cache.pin(as_array(tokens), "user")
        else:
            self.cache.unpin(as_array(tokens))

    def drop(self, tokens: Prefix, now_s: float) -> None:
        if self.random.random() < 0.2:
            self.cache.drop(as_array(tokens))
            self.oracle.drop(tokens)

    def match(self) -> tuple[Prefix, Match]:
        prompt = self.draw_history()
        match = self.cache.match(as_array(prompt), float(next(self.clock)))
        if match.stored:
            self.cache.note_restored(self.random.choice(match.stored), float(next(self.clock)))
        return prompt, match


def expected_positions(oracle: PrefixOracle, prompt: Prefix, traits: CacheTraits) -> list[int]:
    saved = min(oracle.saved_until(prompt), len(prompt) - 1)
    if not traits.has_states:
        return [saved] if saved else []
    positions = oracle.checkpoints(prompt)
    return [pos for pos in positions if pos <= saved or not traits.has_segments][:MAX_STORED]


def held_tokens(stored: Segment | Checkpoint) -> np.ndarray:
    """Return what lies in memory: here the tokens, int32 of shape (n,)."""
    assert stored.data is not None
    return np.frombuffer(stored.data, np.int32)


def check_contents(match: Match, prompt: Prefix, traits: CacheTraits) -> None:
    """Check that what is loaded for a position are the cells and the state of these tokens."""
    for state in match.stored:
        if traits.has_segments:
            ends = [part.end for part in state.parts]
            assert [part.start for part in state.parts] == [0, *ends[:-1]]
            assert ends[-1] == state.pos
            cells = [
                held_tokens(part.segment)[
                    part.start - part.segment.start : part.end - part.segment.start
                ]
                for part in state.parts
            ]
            assert np.concatenate(cells).tolist() == list(prompt[: state.pos])
        if traits.has_states:
            assert state.checkpoint is not None
            held = held_tokens(state.checkpoint)
            assert held.tolist() == list(prompt[: state.pos])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(in_soak(30, 4)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_roomy_cache_knows_what_the_oracle_knows(kind: MemoryKind, seed: int) -> None:
    traits = CacheTraits.of_kind(kind)
    walk = Walk(traits, ROOMY, seed)
    for _ in range(NUM_STEPS):
        walk.step()
        prompt, match = walk.match()
        key = as_array(prompt)
        assert match.num_known == walk.oracle.num_known(prompt)
        assert list(match.divergences) == walk.oracle.divergences(prompt)
        assert walk.cache.saved_until(key) == walk.oracle.saved_until(prompt)
        assert walk.cache.has_checkpoint(key) == walk.oracle.has_checkpoint(prompt)
        assert [c.pos for c in match.checkpoints] == walk.oracle.checkpoints(prompt)[:MAX_STORED]
        positions = [state.pos for state in match.stored]
        assert positions == expected_positions(walk.oracle, prompt, traits)
        assert (match.missing == "") == (
            positions[:1] == [min(match.num_known, len(prompt) - 1)]
            or min(match.num_known, len(prompt) - 1) == 0
        )
        assert match.missing != "evicted"
        check_contents(match, prompt, traits)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(in_soak(30, 4)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_tight_cache_offers_nothing_wrong(kind: MemoryKind, seed: int) -> None:
    traits = CacheTraits.of_kind(kind)
    walk, most_bytes = Walk(traits, TIGHT, seed), 0
    for _ in range(NUM_STEPS):
        walk.step()
        most_bytes = max(most_bytes, walk.cache.num_bytes)
        prompt, match = walk.match()
        assert match.num_known <= walk.oracle.num_known(prompt)
        assert walk.cache.saved_until(as_array(prompt)) <= walk.oracle.saved_until(prompt)
        check_contents(match, prompt, traits)
    counters = walk.cache.statistics().counters
    evicted = counters.num_evicted_segments + counters.num_evicted_checkpoints
    assert evicted > 10
    assert counters.num_forgotten_nodes > 0
    assert most_bytes > 0
    walk.cache.drop_all()
    walk.cache.check_invariants()
    assert walk.cache.num_bytes == 0

"""The parts of sampling that need no library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from milepost.engine.sampling import (
    SAMPLERS,
    has_penalties,
    is_greedy,
    look_back,
    num_looked_back,
    seed_of_choice,
    token_logprob,
)
from milepost.protocol.sampling import (
    DEFAULT_SAMPLERS,
    RANDOM_SEED,
    SAMPLER_NAMES,
    SamplingParams,
)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields)


@pytest.mark.parametrize(
    ("seed", "choice", "expected"),
    [
        (42, 0, 42),
        (42, 3, 45),
        (RANDOM_SEED, 0, RANDOM_SEED),
        (RANDOM_SEED, 2, RANDOM_SEED),
        (RANDOM_SEED - 1, 1, 0),  # never by accident the one that stands for random
        (RANDOM_SEED - 1, 0, RANDOM_SEED - 1),
    ],
)
def test_seed_of_choice(seed: int, choice: int, expected: int) -> None:
    assert seed_of_choice(seed, choice) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"temperature": 0.0}, True),
        ({"temperature": -1.0}, True),
        ({"temperature": 0.0, "dynatemp_range": 0.5}, False),
        ({"temperature": 0.0, "samplers": ("top_k",)}, False),
        ({"temperature": 0.0, "typical_p": 0.5}, False),
        ({"temperature": 0.0, "xtc_probability": 0.5}, False),
        ({"temperature": 0.0, "xtc_probability": 0.5, "samplers": ("temperature",)}, True),
        ({"temperature": 0.0, "samplers": ("temperature", "adaptive_p")}, False),
    ],
)
def test_is_greedy(fields: dict[str, Any], expected: bool) -> None:
    assert is_greedy(params(**fields)) is expected


def test_look_back() -> None:
    assert look_back(-1, 100) == 100
    assert look_back(0, 100) == 0
    assert look_back(64, 100) == 64
    assert look_back(2**31 - 1, 100) == 100


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"repeat_penalty": 1.1}, 64),
        ({"presence_penalty": 0.1, "repeat_last_n": 5}, 5),
        ({"frequency_penalty": 0.1, "repeat_last_n": 0}, 0),
        ({"frequency_penalty": 0.1, "repeat_last_n": -1}, 200),
        ({"dry_multiplier": 0.8}, 200),
        ({"dry_multiplier": 0.8, "dry_penalty_last_n": 10, "repeat_penalty": 1.1}, 64),
        ({"repeat_penalty": 1.1, "repeat_last_n": 1000}, 200),
    ],
)
def test_num_looked_back(fields: dict[str, Any], expected: int) -> None:
    assert num_looked_back(params(**fields), 200) == expected


def test_penalties_count_only_when_they_change_something() -> None:
    assert not has_penalties(params())
    assert not has_penalties(params(repeat_penalty=1.5, repeat_last_n=0))
    assert has_penalties(params(frequency_penalty=-0.5))


def test_every_default_sampler_is_known() -> None:
    assert set(DEFAULT_SAMPLERS) <= set(SAMPLERS)
    assert set(SAMPLER_NAMES) == set(SAMPLERS)


def test_logprobs_are_normalised_and_sorted() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32)) + 7
    found = token_logprob(logits, 2, 3, lambda token: bytes([65 + token]))
    assert found.token == 2
    assert found.token_bytes == b"C"
    assert math.exp(found.logprob) == pytest.approx(0.2, rel=1e-5)
    assert [rival for rival, _, _ in found.top] == [1, 3, 2]
    assert [piece for _, piece, _ in found.top] == [b"B", b"D", b"C"]
    assert [math.exp(logprob) for _, _, logprob in found.top] == pytest.approx([0.4, 0.3, 0.2])


def test_logprobs_survive_banned_and_extreme_logits() -> None:
    logits = np.array([-np.inf, 1000.0, -1000.0], np.float32)
    found = token_logprob(logits, 1, 10, lambda _: b"")
    assert found.logprob == pytest.approx(0.0)
    assert [rival for rival, _, _ in found.top] == [1, 2, 0]


def test_no_rivals_are_reported_unless_wanted() -> None:
    assert token_logprob(np.zeros(4, np.float32), 0, 0, lambda _: b"").top == ()

"""The oracle knows every prefix that was ever computed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from milepost.bench.oracle import (
    Oracle,
    count_needed,
    count_prefilled_twice,
    shared_length,
)
from milepost.client.media_tokens import Tokens


def tokens(text: str) -> Tokens:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ("", "", 0),
        ("", "a", 0),
        ("a", "b", 0),
        ("ab", "ab", 2),
        ("ab", "abc", 2),
        ("abx", "aby", 2),
    ],
)
def test_shared_length(a: str, b: str, length: int) -> None:
    assert shared_length(tokens(a), tokens(b)) == length
    assert shared_length(tokens(b), tokens(a)) == length


def test_an_append_only_session_needs_only_what_is_new() -> None:
    oracle = Oracle([tokens("system user")])

    assert oracle.count_known(tokens("system user reply user")) == len("system user")


def test_a_branch_does_not_make_the_oracle_forget() -> None:
    oracle = Oracle([tokens("system one two three"), tokens("system other")])

    assert oracle.count_known(tokens("system one two four")) == len("system one two ")


def test_what_was_decoded_counts() -> None:
    prompt, decoded = tokens("prompt "), tokens("reply")
    oracle = Oracle([np.concatenate([prompt, decoded])])

    assert oracle.count_known(tokens("prompt reply next")) == len("prompt reply")


def test_the_longest_prefix_is_that_of_a_search_in_all_sequences() -> None:
    rng = random.Random(1)
    oracle, seen = Oracle(), list[str]()
    for _ in range(300):
        text = "".join(rng.choice("ab") for _ in range(rng.randrange(12)))
        expected = max((n for n in range(len(text) + 1) if text[:n] in prefixes(seen)), default=0)

        assert oracle.count_known(tokens(text)) == (expected if seen else 0)

        oracle.remember(tokens(text))
        seen.append(text)


def prefixes(texts: list[str]) -> set[str]:
    return {text[:n] for text in texts for n in range(len(text) + 1)}


@pytest.mark.parametrize(
    ("num_tokens", "num_known", "num_computed", "needed"),
    [
        (100, 0, None, 100),
        (100, 60, None, 40),
        (100, 100, None, 1),  # the logits of the last token are needed
        (100, 60, 80, 20),  # cancelled
        (100, 60, 50, 0),  # cancelled before it came to what is new
        (100, 60, 100, 40),  # cancelled too late
        (0, 0, None, 0),
    ],
)
def test_needed_tokens(
    num_tokens: int, num_known: int, num_computed: int | None, needed: int
) -> None:
    assert count_needed(num_tokens, num_known, num_computed) == needed


def test_prefilled_twice_is_what_is_over_the_need() -> None:
    assert count_prefilled_twice(120, 100) == 20
    assert count_prefilled_twice(80, 100) == 0

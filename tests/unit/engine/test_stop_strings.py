"""Stop strings are found in every cut of a text, and never a part of one is sent."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from tests.oracles.stop_strings import first_stop, sent_until

from milepost.engine.stop_strings import StopMatcher


def cuts(text: str) -> Iterator[list[str]]:
    """Yield every way to cut a text into pieces."""
    for mask in range(1 << (len(text) - 1)):
        pieces = [text[0]]
        for i, char in enumerate(text[1:]):
            if mask >> i & 1:
                pieces.append(char)
            else:
                pieces[-1] += char
        yield pieces


def check_against_oracle(pieces: Sequence[str], stop: Sequence[str]) -> None:
    matcher, so_far, sent = StopMatcher(stop), "", ""
    for piece in pieces:
        so_far += piece
        sent += matcher.feed(piece)
        found = first_stop(so_far, stop)
        if found is not None:
            assert (len(sent), matcher.found) == found
            assert so_far.startswith(sent)
            assert matcher.flush() == ""
            return
        assert not matcher.found
        assert sent == sent_until(so_far, stop)
    assert sent + matcher.flush() == so_far


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("one STOP two", ["STOP"]),
        ("ababacab", ["abac"]),
        ("aaaaaab", ["aab"]),
        ("xxabcxx", ["abcd", "bc"]),
        ("xxabcdxx", ["abc", "abcd", "cd"]),
        ("\n\nUser:", ["\nUser:", "\n\n\n"]),
        ("ST STO ST", ["STOP"]),
        ("naïve 🎉🎉!", ["🎉!", "🎉🎉🎉"]),
    ],
)
def test_every_cut_finds_what_the_oracle_finds(text: str, stop: list[str]) -> None:
    for pieces in cuts(text):
        check_against_oracle(pieces, stop)


def test_random_texts_and_stop_strings() -> None:
    randoms = random.Random(7)
    for _ in range(3000):
        stop = [
            "".join(randoms.choices("ab", k=randoms.randint(1, 5)))
            for _ in range(randoms.randint(1, 4))
        ]
        pieces = ["".join(randoms.choices("abc", k=randoms.randint(0, 4))) for _ in range(8)]
        check_against_oracle(pieces, stop)


def test_the_one_that_begins_first_counts_and_of_those_the_longest() -> None:
    matcher = StopMatcher(["b", "abc", "ab"])
    assert matcher.feed("xabcd") == "x"
    assert matcher.found == "abc"


def test_a_shorter_one_ends_the_text_before_the_longer_is_complete() -> None:
    matcher = StopMatcher(["abc", "ab"])
    assert matcher.feed("xab") == "x"
    assert matcher.found == "ab"


def test_without_stop_strings_nothing_is_held() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.feed("text") == "text"
    assert matcher.flush() == ""


def test_flush_returns_what_was_held_once() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("go STO") == "go "
    assert matcher.flush() == "STO"
    assert matcher.flush() == ""

"""When reasoning has used its budget, told from the bytes of its tokens."""

from __future__ import annotations

import pytest

from milepost.engine.reasoning_budget import ReasoningBudget
from milepost.protocol.messages import ReasoningLimit

ENDING = (7, 8)


def budget(max_tokens: int, *, is_open: bool) -> ReasoningBudget:
    return ReasoningBudget(
        ReasoningLimit(
            start="<think>", end="</think>", is_open=is_open, max_tokens=max_tokens, ending=ENDING
        )
    )


def first_forced(watched: ReasoningBudget, pieces: list[str]) -> int:
    """Return how many pieces are noted before one is forced; -1 if none is."""
    for index, piece in enumerate(pieces):
        if watched.next_forced() is not None:
            return index
        watched.note(piece.encode())
    return len(pieces) if watched.next_forced() is not None else -1


@pytest.mark.parametrize(
    ("max_tokens", "is_open", "pieces", "forced"),
    [
        (2, True, ["a", "b", "c"], 2),
        (0, True, ["a"], 0),
        (2, False, ["a", "b", "c", "d"], -1),
        (2, False, ["x", "<think>", "a", "b", "c"], 4),
        (0, False, ["<think>", "a"], 1),
        (3, False, ["<th", "ink", ">a", "b", "c", "d"], 6),
        (3, True, ["a", "b", "</think>", "c", "d"], -1),
        (3, True, ["a", "</", "think>", "c", "d"], -1),
        (2, True, ["a", "</think>", "<think>", "b", "c"], 4),
        (9, True, ["a</think>", "<think>b</think>", "c"], -1),
    ],
)
def test_the_end_is_forced_when_the_budget_is_used(
    max_tokens: int, is_open: bool, pieces: list[str], forced: int
) -> None:
    assert first_forced(budget(max_tokens, is_open=is_open), pieces) == forced


def test_after_its_end_was_forced_reasoning_is_over() -> None:
    watched = budget(0, is_open=True)
    for token in ENDING:
        assert watched.next_forced() == token
        watched.note_forced()
        watched.note(b"?")  # not even the end marker
    assert watched.next_forced() is None


def test_reasoning_that_begins_again_is_ended_at_once() -> None:
    watched = budget(1, is_open=True)
    watched.note(b"a")
    for piece in (b"time is up", b"</think>"):
        watched.note_forced() if watched.next_forced() else None
        watched.note(piece)
    assert watched.next_forced() is None
    watched.note(b"<think>")
    assert watched.next_forced() == ENDING[0]


def test_a_budget_that_was_given_up_forces_nothing() -> None:
    watched = budget(0, is_open=True)
    assert watched.next_forced() == ENDING[0]
    watched.give_up()
    watched.note(b"<think>")
    assert watched.next_forced() is None

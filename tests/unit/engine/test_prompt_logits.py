"""Logits are kept by prompt, within a number of bytes."""

from __future__ import annotations

import numpy as np

from milepost.engine.prompt_logits import PromptLogits


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def row(value: float) -> np.ndarray:
    return np.full(4, value, np.float32)


def test_only_the_very_prompt_is_found() -> None:
    known = PromptLogits()
    known.keep_logits(tokens(1, 2), row(0.5))
    found = known.find_logits(tokens(1, 2))
    assert found is not None
    assert found.tolist() == [0.5] * 4
    assert known.find_logits(tokens(1, 2, 3)) is None
    assert known.find_logits(tokens(1)) is None


def test_what_is_kept_is_a_copy() -> None:
    known, logits = PromptLogits(), row(1.0)
    known.keep_logits(tokens(1), logits)
    logits[:] = 0
    found = known.find_logits(tokens(1))
    assert found is not None
    assert found[0] == 1.0


def test_the_least_recently_used_goes_first() -> None:
    known = PromptLogits(max_bytes=2 * (4 * 4 + 4))
    known.keep_logits(tokens(1), row(1.0))
    known.keep_logits(tokens(2), row(2.0))
    known.find_logits(tokens(1))
    known.keep_logits(tokens(3), row(3.0))
    assert known.find_logits(tokens(2)) is None
    assert known.find_logits(tokens(1)) is not None
    assert known.find_logits(tokens(3)) is not None


def test_the_same_prompt_takes_room_once() -> None:
    known = PromptLogits(max_bytes=2 * (4 * 4 + 4))
    known.keep_logits(tokens(1), row(1.0))
    for value in (2.0, 3.0):
        known.keep_logits(tokens(2), row(value))
    found = known.find_logits(tokens(2))
    assert found is not None
    assert found[0] == 3.0
    assert known.find_logits(tokens(1)) is not None


def test_clearing_forgets_all() -> None:
    known = PromptLogits()
    known.keep_logits(tokens(1), row(1.0))
    known.forget_all()
    assert known.find_logits(tokens(1)) is None

"""An idle conversation leaves when staying costs more than coming back."""

from __future__ import annotations

import dataclasses

from milepost.engine.residency import ResidencyRates, should_evict

RATES = ResidencyRates(bytes_per_token=64_000, expected_decode_tokens=200, restore_bytes_per_s=3e9)


def test_a_long_conversation_leaves_before_a_long_answer() -> None:
    assert should_evict(30_000, RATES)


def test_it_stays_while_answers_are_short() -> None:
    assert not should_evict(30_000, dataclasses.replace(RATES, expected_decode_tokens=4))


def test_a_short_one_is_not_worth_a_copy() -> None:
    assert not should_evict(1, RATES)


def test_a_state_without_cells_never_leaves() -> None:
    assert not should_evict(30_000, dataclasses.replace(RATES, bytes_per_token=0.0))


def test_a_slow_restore_keeps_it_in() -> None:
    assert not should_evict(30_000, dataclasses.replace(RATES, restore_bytes_per_s=5e7))

"""Counts go up by what a batch held, and the prefill rate follows the latest batches."""

from __future__ import annotations

import pytest

from milepost.engine.statistics import MIN_RATE_TOKENS, SMOOTHING, Statistics
from milepost.protocol.counters import Counters


def test_a_new_engine_has_counted_nothing() -> None:
    assert Statistics().counters == Counters()
    assert Statistics().prefill_tokens_per_s == 0.0


def test_time_goes_to_what_a_batch_mostly_held() -> None:
    statistics = Statistics()
    statistics.note_batch(num_prefill=100, num_decode=2, elapsed_s=1.0)
    statistics.note_batch(num_prefill=0, num_decode=4, elapsed_s=0.25)
    statistics.note_batch(num_prefill=2, num_decode=2, elapsed_s=0.5)
    counters = statistics.counters
    assert (counters.num_prefilled_tokens, counters.num_decode_calls) == (102, 3)
    assert (counters.prefill_s, counters.decode_s) == (1.0, 0.75)


def test_the_rate_is_smoothed() -> None:
    statistics = Statistics()
    statistics.note_batch(100, 0, 1.0)
    assert statistics.prefill_tokens_per_s == 100.0
    statistics.note_batch(200, 0, 1.0)
    assert statistics.prefill_tokens_per_s == pytest.approx(100 + SMOOTHING * 100)


def test_small_batches_say_nothing_about_the_rate() -> None:
    statistics = Statistics()
    statistics.note_batch(MIN_RATE_TOKENS - 1, 0, 1.0)
    statistics.note_batch(MIN_RATE_TOKENS, 0, 0.0)
    assert statistics.prefill_tokens_per_s == 0.0

"""Sums, shares and percentiles, and the JSON that keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.bench.measures import (
    RequestMeasure,
    TraceMeasure,
    percentile,
    read_measure,
    sum_up,
)
from milepost.errors import BenchmarkFailed


def measured(**fields: Any) -> RequestMeasure:
    usual: dict[str, Any] = {"id": 0, "session": "s", "kind": "k", "status": "ok"}
    return RequestMeasure(**usual | fields)


FULL = measured(
    num_prompt_tokens=100,
    num_cached=40,
    num_prefilled=60,
    num_oracle=50,
    num_prefilled_twice=10,
    ttft_s=0.5,
    prefill_ms=400.0,
    num_decoded=16,
    decode_tokens_per_s=30.0,
)


def test_sums_and_shares() -> None:
    second = measured(
        num_prompt_tokens=200, num_cached=160, num_prefilled=40, num_oracle=30,
        num_prefilled_twice=10, ttft_s=0.1, prefill_ms=100.0,
    )  # fmt: skip

    totals = sum_up([FULL, second])

    assert (totals.num_prompt_tokens, totals.num_prefilled, totals.num_oracle) == (300, 100, 80)
    assert totals.cached_share == pytest.approx(2 / 3)
    assert totals.ratio_to_oracle == pytest.approx(1.25)
    assert totals.prefilled_twice_share == pytest.approx(0.2)
    assert totals.prefill_ms == 500.0
    assert totals.ttft_s is not None
    assert totals.ttft_s.median == pytest.approx(0.3)
    assert totals.ttft_s.p95 == pytest.approx(0.48)


def test_what_is_not_reported_is_in_no_share() -> None:
    unreported = measured(num_prompt_tokens=1000, num_oracle=1000)

    totals = sum_up([FULL, unreported])

    assert totals.num_unreported == 1
    assert totals.cached_share == pytest.approx(0.4)
    assert totals.ratio_to_oracle == pytest.approx(1.2)


def test_cancelled_and_failed_requests_are_counted() -> None:
    totals = sum_up([FULL, measured(status="cancelled"), measured(status="failed")])

    assert (totals.num_requests, totals.num_ok) == (3, 1)
    assert (totals.num_cancelled, totals.num_failed) == (1, 1)


def test_a_cancelled_prompt_is_not_counted_as_uncached() -> None:
    cancelled = measured(
        status="cancelled", num_prompt_tokens=1000, num_cached=0, num_prefilled=100, num_oracle=100
    )

    totals = sum_up([FULL, cancelled])

    assert totals.cached_share == pytest.approx(0.4)
    assert totals.num_prefilled == 160


def test_nothing_has_no_shares() -> None:
    totals = sum_up([])

    assert totals.num_requests == 0
    assert totals.ratio_to_oracle is None
    assert totals.ttft_s is None


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_percentiles_lie_between_neighbours(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == pytest.approx(value)


def test_json_keeps_everything(tmp_path: Path) -> None:
    measure = TraceMeasure(
        trace="day", variant="v", server="b1", notes=("a note",), requests=(FULL,), took_s=1.5
    )
    path = tmp_path / "day.json"

    path.write_bytes(measure.to_json())

    assert read_measure(path) == measure
    assert b'"ratio_to_oracle": 1.2' in path.read_bytes()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "not the result of a replay"),
        ('{"trace":"t","variant":"","server":"s","format":9}', "9"),
    ],
)
def test_other_json_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BenchmarkFailed, match=complaint):
        TraceMeasure.from_json(text)

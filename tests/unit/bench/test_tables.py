"""Tables show the numbers, and say where there are none."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.bench.tables import print_measures


def show(*requests: RequestMeasure, with_requests: bool = False, **fields: Any) -> str:
    stream = io.StringIO()
    measure = TraceMeasure(trace="day", variant="", server="b1", requests=requests, **fields)
    print_measures(Console(file=stream, width=160), [measure], with_requests=with_requests)
    return stream.getvalue()


def row_of(text: str, first: str) -> list[str]:
    """Return the cells of the last row that begins with `first`."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row and row[0] == first][-1]


KNOWN = RequestMeasure(
    id=3, session="s", kind="user_turn", status="ok", num_prompt_tokens=12_000, num_cached=9_000,
    num_prefilled=3_000, num_oracle=2_400, num_prefilled_twice=600, ttft_s=0.25, prefill_ms=240.0,
    num_decoded=16, decode_tokens_per_s=31.5,
)  # fmt: skip
UNKNOWN = RequestMeasure(
    id=4, session="s", kind="title", status="ok", num_prompt_tokens=50, ttft_s=0.1
)


def test_totals_kinds_and_requests_are_shown() -> None:
    text = show(KNOWN, with_requests=True)

    totals = ["1", "12,000", "75.0%", "3,000", "2,400", "1.250", "20.0%", "250", "250", "0.24"]
    assert row_of(text, "day") == ["day", "b1", *totals, "31.5"]
    assert row_of(text, "user_turn") == ["user_turn", *totals, "31.5"]
    assert row_of(text, "3") == [
        "3", "s", "user_turn", "ok", "12,000", "9,000", "3,000", "2,400", "600", "250", "240",
        "16", "31.5",
    ]  # fmt: skip


def test_what_is_not_reported_is_said() -> None:
    text = show(UNKNOWN)

    assert row_of(text, "day") == [
        "day", "b1", "1", "50", "not reported", "not reported", "-", "-", "-", "100", "100", "-",
        "-",
    ]  # fmt: skip


def test_notes_follow_the_tables() -> None:
    failed = RequestMeasure(id=9, session="s", kind="k", status="failed", error="broke off")

    text = show(KNOWN, failed, was_interrupted=True, notes=("a note",))

    assert "day: interrupted; requests measured: 2" in text
    assert "day: a note" in text
    assert "day: failed: 1, the first was request 9: broke off" in text
    assert "day: the server knew parts of the first prompt: it was not fresh" in text

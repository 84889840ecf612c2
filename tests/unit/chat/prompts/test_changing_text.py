"""The line that changes at midnight is found, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from milepost.chat.prompts.boundaries import find_date

BEFORE = "You are an agent.\nBe brief, in 3 steps.\n"


@pytest.mark.parametrize(
    "line",
    [
        "Current date: 2026-11-30",
        "Today is Monday, November 30, 2026.",
        "Today's date: Mon Nov 30 2026",
        "Date: 30 November 2026",
        "Date: 30.11.2026",
        "Today: 11/30/2026",
        "It is 14:05.",
        "<env>today: 2026/11/30</env>",
    ],
)
def test_a_date_is_found_at_the_begin_of_its_line(line: str) -> None:
    assert find_date(f"{BEFORE}{line}\nRules follow.\n") == len(BEFORE)


@pytest.mark.parametrize(
    "text",
    [
        "Version 1.2.3 of the tool, port 8080.",
        "Marked 3 of 10 files; decide 2 times, 12 marches.",
        "ratio 16:9, lines 12-30",
        "sections 4.11 and 4.12",
        "",
    ],
)
def test_other_numbers_are_no_dates(text: str) -> None:
    assert find_date(text) == -1


def test_the_first_of_several_counts() -> None:
    assert find_date("a\nb 2026-01-02\nc 2026-01-03") == 2

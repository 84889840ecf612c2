"""Finds where a system prompt names the date or the time: the part of it that is known to change.

Agents put the date into their system prompt, often in front of tools and rules that stay the same,
and at midnight everything behind it is new. Where it stands could be learnt from the first change,
but only at the price of all that stands before it, in each conversation that is open then.
"""

from __future__ import annotations

import re

MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    "|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
DATE = re.compile(
    rf"""
    \b \d{{4}} [-/.] \d{{1,2}} [-/.] \d{{1,2}} (?!\d)              # 2026-11-30
    | \b \d{{1,2}} [-/.] \d{{1,2}} [-/.] (?:\d{{4}}|\d{{2}}) \b (?![-/.]\d)   # 30/11/2026
    | \b {MONTH} \.? \s \d{{1,2}} (?:st|nd|rd|th)? \b               # November 30
    | \b \d{{1,2}} (?:st|nd|rd|th)? \.? \s {MONTH} \b               # 30 November
    | \b [012]?\d : [0-5]\d (?: : [0-5]\d )? \b                      # 14:05
    """,
    re.VERBOSE | re.IGNORECASE,
)


def find_date(text: str) -> int:
    """Return where the line begins that names the first date or time of a text; -1 if none does."""
    found = DATE.search(text)
    return text.rfind("\n", 0, found.start()) + 1 if found else -1

"""Private-use characters that stand for something in a text while a template renders it.

    spelled control token   see <▮|im_end|> here    one after its first character (rendered_prompt)
    image or audio          before▮00000after       a marker instead of it        (media_parts)
    text of a message       ▮00002Fix it.▮00002     a marker on each side         (conversation)

A sentinel is chosen anew each time, among those that are nowhere in what it is written into. Each
of the three is written into a conversation that has the others already, if they are there at all;
so none of them can be taken for another one, nor text of a client for any of them. A marker is a
sentinel and a number, in digits that are private-use characters as well: what templates do to words
and numbers (trim, split, title, JSON) they do not do to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

# No icon font in use has glyphs in this part of the private-use area.
FIRST_SENTINEL = 0xF700
LAST_SENTINEL = 0xF8EE
FIRST_DIGIT = 0xF8EF
DIGITS = "".join(chr(FIRST_DIGIT + i) for i in range(16))
NUM_DIGITS = 5  # a million messages
MARKER_CHARS = 1 + NUM_DIGITS
DIGIT_OF_HEX = {ord(f"{i:x}"): digit for i, digit in enumerate(DIGITS)}
ESCAPE = re.compile(r"\\u([fF][78][0-9a-fA-F]{2})")
HEX_OF_DIGIT = {ord(digit): f"{i:x}" for i, digit in enumerate(DIGITS)}


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker in a text."""

    start: int
    number: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + MARKER_CHARS


def choose_sentinel(*values: object) -> str | None:
    """Return a character that is in no string of JSON values, not even as a JSON escape.

    None where all of them are, which takes some effort.
    """
    texts = list(strings_in(values))
    taken = {
        int(digits, 16)
        for text in texts
        if "\\u" in text  # much faster than the pattern
        for digits in ESCAPE.findall(text)
    }
    for code in range(FIRST_SENTINEL, LAST_SENTINEL + 1):
        if code not in taken and not any(chr(code) in text for text in texts):
            return chr(code)
    return None


def write_marker(sentinel: str, number: int) -> str:
    """Return the marker of a number."""
    return sentinel + f"{number:0{NUM_DIGITS}x}".translate(DIGIT_OF_HEX)


def find_markers(text: str, sentinel: str) -> Iterator[Marker]:
    """Yield the markers in a text."""
    for match in re.finditer(f"{sentinel}([{DIGITS}]{{{NUM_DIGITS}}})", text):
        yield Marker(match.start(), int(match[1].translate(HEX_OF_DIGIT), 16))


def unescape_sentinel(text: str, sentinel: str) -> str:
    """Return a rendered text with a sentinel, or its markers, that a template has escaped.

    As its `tojson` may, if it asks for ASCII.
    """
    escaped = _escape(sentinel)
    if escaped not in text:
        return text
    digits = "|".join(re.escape(_escape(digit)) for digit in DIGITS)
    pattern = f"{re.escape(escaped)}(?:(?:{digits}){{{NUM_DIGITS}}})?"
    return re.sub(pattern, lambda match: str(json.loads(f'"{match[0]}"')), text)


def strings_in(value: object) -> Iterator[str]:
    """Yield all strings in a JSON value, keys included, however deep it is nested."""
    values = [value]
    while values:
        item = values.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list | tuple):
            values.extend(item)
        elif isinstance(item, dict):
            yield from item
            values.extend(item.values())


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}"

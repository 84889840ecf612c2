"""Compares texts of templates piece by piece, so that no comparison ends inside of a marker.

A piece is a tag (`<tool_call>`, `<｜tool▁sep｜>`, `[ARGS]`), a word, white space, or another single
character.
"""

from __future__ import annotations

import re
from itertools import dropwhile, takewhile
from unicodedata import category

PIECE = re.compile(
    r"<[^<>\s]+>"
    r"|\[/?\w+\]"
    r"|⟦[^⟦⟧]*⟧|【[^【】]*】|«[^«»]*»"
    r"|\w+|\s+|.",
    re.DOTALL,
)
TAG = re.compile(r"<[^<>\s]+>|\[/?\w+\]|⟦[^⟦⟧]*⟧|【[^【】]*】|«[^«»]*»")


def split_pieces(text: str) -> list[str]:
    """Return the pieces of a text, which together are the text."""
    return PIECE.findall(text)


def shared_start(one: str, other: str) -> str:
    """Return the longest start of both texts that is whole pieces of both."""
    pairs = zip(split_pieces(one), split_pieces(other), strict=False)
    return "".join(piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_end(one: str, other: str) -> str:
    """Return the longest end of both texts that is whole pieces of both.

    Brackets that close what is before it in both are left out.
    """
    pairs = zip(reversed(split_pieces(one)), reversed(split_pieces(other)), strict=False)
    shared = [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    shared.reverse()
    before = len("".join(shared))
    if _has_opening(one[: len(one) - before]) and _has_opening(other[: len(other) - before]):
        shared = list(dropwhile(_is_closing, shared))
    return "".join(shared)


def last_marker(text: str) -> str:
    """Return the last tag of a text with all after it, or its last piece; without white space.

    If that occurs before, too, it begins with an earlier tag.
    """
    text = text.strip()
    for match in reversed(list(TAG.finditer(text))):
        if text.count(text[match.start() :]) == 1:
            return text[match.start() :]
    return split_pieces(text)[-1] if text else ""


def first_tag(text: str) -> str:
    """Return the tag that a text begins with, empty if it begins with none."""
    match = TAG.match(text)
    return match[0] if match else ""


def ends_with_tag(text: str) -> str:
    """Return the tag that a text ends with, empty if it ends with none."""
    tags = list(TAG.finditer(text))
    return tags[-1][0] if tags and tags[-1].end() == len(text) else ""


def _has_opening(text: str) -> bool:
    return any(char == "<" or category(char) in ("Ps", "Pi") for char in text)


def _is_closing(piece: str) -> bool:
    return piece == ">" or (len(piece) == 1 and category(piece) in ("Pe", "Pf"))

"""What a reply consists of, in the order in which it is read: made by `stream_parser`.

A call begins once its name is known; its arguments follow in pieces that together are JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the text of a reply; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of its reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins."""

    index: int  # 0 for the first call of the reply
    call_id: str  # as the model wrote it, or made up
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of its arguments; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A tool call is complete; the pieces of its arguments are valid JSON text."""

    index: int


@dataclass(frozen=True, slots=True)
class ParseWarning:
    """Something looked like a call but was none; it was passed on as content."""

    message: str


ReplyEvent = ContentText | ReasoningText | CallStart | CallArguments | CallEnd | ParseWarning

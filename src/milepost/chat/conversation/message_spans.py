"""Finds where the text of each message stands in a prompt.

The conversation is rendered once more with a mark (`sentinels`) before and after the text of its
messages; the marks are taken out again and their places noted. A mark is inside of surrounding
white space, which templates trim, and carries the number of its message, because templates leave
texts out and move them. Whether marks changed what a template does shows in the comparison with the
real prompt: spans count only where the texts agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.sentinels import find_markers, write_marker

MARKED_FIELDS = ("reasoning_content", "content")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a message's own text stands: from its first to its last character, without frame."""

    start: int
    end: int


def take_messages(
    conversation: Conversation, indices: Sequence[int], tools: list[dict[str, Any]] | None
) -> Conversation:
    """Return a conversation of some of the messages, in that order, with other tools."""
    argument_texts = {}
    for new, old in enumerate(indices):
        for call in range(len(conversation.messages[old].get("tool_calls", ()))):
            argument_texts[new, call] = conversation.argument_texts[old, call]
    return Conversation(
        [conversation.messages[i] for i in indices], tools, conversation.documents, argument_texts
    )


def mark_messages(conversation: Conversation, sentinel: str, first: int = 0) -> Conversation:
    """Return the conversation with marks around the texts of its messages from `first` on."""
    messages = [
        _mark_message(message, write_marker(sentinel, i)) if i >= first else message
        for i, message in enumerate(conversation.messages)
    ]
    return replace(conversation, messages=messages)


def take_marks_out(marked: str, sentinel: str) -> tuple[str, dict[int, Span]]:
    """Return the text without marks, and where the messages stand in it, by index.

    What a template has put out of order is left out, so the spans do not overlap.
    """
    texts: list[str] = []
    spans: dict[int, Span] = {}
    pos = done = 0
    for mark in find_markers(marked, sentinel):
        texts.append(marked[done : mark.start])
        pos += mark.start - done
        done = mark.end
        start = spans[mark.number].start if mark.number in spans else pos
        spans[mark.number] = Span(start, pos)
    texts.append(marked[done:])
    text = "".join(texts)
    return text, _in_order(spans, len(text))


def common_prefix(one: str, other: str) -> int:
    """Return how many characters both texts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # one[:low] agrees, one[:high] does not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(one: str, other: str) -> int:
    """Return how many characters both texts have in common at their end."""
    low, high = 0, min(len(one), len(other))
    if one[len(one) - high :] == other[len(other) - high :]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]:
            low = middle
        else:
            high = middle
    return low


def _mark_message(message: Message, mark: str) -> Message:
    marked = message.copy()
    for key in MARKED_FIELDS:
        text = message.get(key, "")
        body = text.strip()
        if body:  # a text that was empty would no longer be
            start = text.index(body)
            end = start + len(body)
            marked[key] = f"{text[:start]}{mark}{body}{mark}{text[end:]}"
    return marked


def _in_order(spans: dict[int, Span], limit: int) -> dict[int, Span]:
    """Drop spans that begin after the next message: some templates move the system message."""
    ordered: Iterable[int] = sorted(spans, reverse=True)
    kept: dict[int, Span] = {}
    for index in ordered:
        if spans[index].end <= limit:
            kept[index] = spans[index]
            limit = spans[index].start
    return kept

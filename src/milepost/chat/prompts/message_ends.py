"""Finds where a message ends in a prompt, by what its template writes between two messages.

Rendering the conversation up to each message would cost a rendering for every one. What stands
between two messages depends on little more than their roles: so it is learnt (`history_probe`) from
a small window of the conversation when a pair of roles is seen first, and afterwards only
recognised. The generation prompt counts as the message after the last one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.message_spans import (
    MARKED_FIELDS,
    Span,
    common_prefix,
    take_messages,
)
from milepost.chat.templates.frame_probe import Frame, Pair
from milepost.chat.templates.history_probe import HistoryProfile
from milepost.protocol.messages import SYSTEM_ROLES, TOOL_ROLES

MAX_LESSONS = 3  # per pair of roles; arbitrary: some templates write something new every time
# Arbitrary, by what published templates write.
MAX_HEADER_CHARS = MAX_TRAILER_CHARS = 400
MIN_START_CHARS = 8


@dataclass(frozen=True, slots=True)
class Gap:
    """What is between the texts of two messages; None for a side that is not known."""

    low: int | None  # where the first text ends
    high: int | None  # where the second begins


class EndFinder:
    """Finds the ends of messages in prompts of one template, given the same variables."""

    def __init__(self, history: HistoryProfile) -> None:
        self._history = history

    def find_end(
        self, conversation: Conversation, index: int, text: str, spans: Mapping[int, Span]
    ) -> int:
        """Return where a message ends in a prompt; -1 when that cannot be said.

        `spans` are the places of the messages in `text`, as far as they are known.
        """
        gaps = list(_possible_gaps(conversation, index, text, spans))
        if gaps == [Gap(None, None)]:
            return -1
        pair = _pair(conversation.messages, index)
        end = self._exact_end(pair, text, gaps)
        if end < 0 and self._history.num_lessons(pair) < MAX_LESSONS:
            self._learn(pair, conversation, index)
            end = self._exact_end(pair, text, gaps)
        return end if end >= 0 else self._likely_end(pair, text, gaps)

    def _exact_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._history.frames(pair)
        ends = (_exact_end(frame, text, gap) for gap in gaps for frame in frames)
        return next((end for end in ends if end >= 0), -1)

    def _likely_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._history.frames(pair)
        ends = (_likely_end(frame, text, gap) for gap in gaps for frame in frames)
        end = next((end for end in ends if end >= 0), -1)
        low, high = gaps[-1].low, gaps[-1].high
        if end < 0 and high is not None:
            start = _shared_start([frame.header or "" for frame in frames])
            if start:
                end = text.rfind(start, low or max(0, high - MAX_HEADER_CHARS), high)
        if end < 0 and low is not None:
            closing = _shared_end([frame.trailer or "" for frame in frames])
            if closing:
                limit = low + MAX_TRAILER_CHARS if high is None else high
                pos = text.find(closing, low, limit)
                end = pos + len(closing) if pos >= 0 else -1
        has_calls = pair[1]  # which stand after the text
        return low if end < 0 and low is not None and not has_calls else end

    def _learn(self, pair: Pair, conversation: Conversation, index: int) -> None:
        """Learn from a window with the message and the next.

        The last lesson is from the whole conversation up to there: some templates write something
        else the first time, or refuse a window.
        """
        stop = min(index + 2, len(conversation.messages))
        if self._history.num_lessons(pair) + 1 < MAX_LESSONS:
            window = take_window(conversation, index, stop)
        else:
            window = take_messages(conversation, range(stop), conversation.tools)
        num_before = len(window.messages) - (stop - index - 1)
        self._history.learn_frames(pair, window, num_before)


def take_window(conversation: Conversation, first: int, stop: int) -> Conversation:
    """Return a small conversation with the messages first ..< stop that templates still accept.

    It begins with the system messages, the user message before `first`, and the reply whose tools
    `first` answers. Of the tools there is only one.
    """
    return take_messages(
        conversation,
        window_indices(conversation, first, stop),
        (conversation.tools or [])[:1] or None,
    )


def window_indices(conversation: Conversation, first: int, stop: int) -> list[int]:
    """Return which messages `take_window` takes."""
    messages = conversation.messages
    num_head = count_head(messages)
    start = max(first, num_head)
    while start > num_head and messages[start]["role"] in TOOL_ROLES:
        start -= 1
    user = start
    while user > num_head and messages[user]["role"] != "user":
        user -= 1
    indices = list(range(min(num_head, stop)))
    if user < start and user >= num_head:
        indices.append(user)
    return indices + list(range(start, stop))


def count_head(messages: list[Message]) -> int:
    """Return how many system messages there are before all others."""
    for i, message in enumerate(messages):
        if message["role"] not in SYSTEM_ROLES:
            return i
    return len(messages)


def _pair(messages: list[Message], index: int) -> Pair:
    message = messages[index]
    has_calls = "tool_calls" in message
    if index + 1 == len(messages):
        return message["role"], has_calls, "generation", False
    following = messages[index + 1]
    return message["role"], has_calls, following["role"], "tool_calls" in following


def _exact_end(frame: Frame, text: str, gap: Gap) -> int:
    """Return the end of the first message if all known of the gap is like this; or -1."""
    if gap.low is None or gap.high is None or frame.trailer is None or frame.header is None:
        return _likely_end(frame, text, gap)
    is_same = text[gap.low : gap.high] == frame.trailer + frame.header
    return gap.low + len(frame.trailer) if is_same else -1


def _likely_end(frame: Frame, text: str, gap: Gap) -> int:
    """Return the end of the first message if one side of the gap is like this; or -1."""
    low, high = gap.low, gap.high
    if high is not None and frame.header is not None:
        end = high - len(frame.header)
        if end >= (low or 0) and text.startswith(frame.header, end):
            return end
    if low is not None and frame.trailer is not None:
        end = low + len(frame.trailer)
        if (high is None or end <= high) and text.startswith(frame.trailer, low):
            return end
    return -1


def _possible_gaps(
    conversation: Conversation, index: int, text: str, spans: Mapping[int, Span]
) -> Iterator[Gap]:
    """Yield the gap after a message with, and without, the white space around both texts.

    Whether that is written, or trimmed, or escaped is up to the template.
    """
    messages = conversation.messages
    lows: list[int | None] = [spans[index].end if index in spans else None]
    if lows[0] is not None:
        space = _space_around(messages[index])[1]
        for written in (space, json.dumps(space)[1:-1]):
            if written and text.startswith(written, spans[index].end):
                lows.insert(0, spans[index].end + len(written))
    highs: list[int | None] = [len(text) if index + 1 == len(messages) else None]
    if index + 1 in spans:
        highs = [spans[index + 1].start]
        space = _space_around(messages[index + 1])[0]
        for written in (space, json.dumps(space)[1:-1]):
            if written and text.endswith(written, 0, spans[index + 1].start):
                highs.insert(0, spans[index + 1].start - len(written))
    for low in lows:
        for high in highs:
            yield Gap(low, high)


def _space_around(message: Message) -> tuple[str, str]:
    """Return the white space around the text of a message."""
    texts = [text for key in MARKED_FIELDS if (text := message.get(key, "")).strip()]
    if not texts:
        return "", ""
    first, last = texts[0], texts[-1]
    return first[: len(first) - len(first.lstrip())], last[len(last.rstrip()) :]


def _shared_end(trailers: list[str]) -> str:
    """Return how all trailers end, if that is enough to be recognised by."""
    return _shared_start([trailer[::-1] for trailer in trailers])[::-1]


def _shared_start(headers: list[str]) -> str:
    """Return how all headers begin, if that is enough to be recognised by."""
    if len(headers) < 2:
        return ""
    start = headers[0]
    for header in headers[1:]:
        start = start[: common_prefix(start, header)]
    return start if len(start) >= MIN_START_CHARS else ""

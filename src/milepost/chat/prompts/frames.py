"""Learns what a template writes between two messages, and where in that the first one ends.

    …last words<|im_end|>\\n<|im_start|>user\\n<tool_response>\\nfirst words…
               └ trailer ──┘└ header ─────────────────────────┘

The end of a message is where the prompt of the conversation up to it, without a generation prompt,
stops agreeing with the longer one. Rendering that for every message would cost a rendering each;
but what stands between two messages depends on little more than their roles. So it is learned
from a small window of a conversation when a pair of roles is seen first, and afterwards only
recognised. The generation prompt counts as the message behind the last one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.message_spans import (
    MARKED_FIELDS,
    Span,
    common_prefix,
    mark_messages,
    take_marks_out,
    take_messages,
)
from milepost.chat.conversation.sentinels import choose_sentinel
from milepost.chat.templates.history_probe import Render
from milepost.protocol.messages import SYSTEM_ROLES, TOOL_ROLES

MAX_LESSONS = 3  # per pair of roles; arbitrary: some templates write something new every time
# Arbitrary, by what published templates write.
MAX_HEADER_CHARS = MAX_TRAILER_CHARS = 400
MIN_OPENING_CHARS = 8
MAX_TAIL_CHARS = 64  # that a shorter prompt may write behind the last message only
NUM_TAIL_CHARS = 24

Pair = tuple[str, bool, str, bool]


@dataclass(frozen=True, slots=True)
class Gap:
    """What is between the texts of two messages; None for a side that is not known."""

    low: int | None  # where the first text ends
    high: int | None  # where the second begins


@dataclass(frozen=True, slots=True)
class Frame:
    """What was seen between two messages; None for a side that is not always the same."""

    trailer: str | None
    header: str | None

    def exact_end(self, text: str, gap: Gap) -> int:
        """Return the end of the first message if all known of the gap is like this; or -1."""
        if gap.low is None or gap.high is None or self.trailer is None or self.header is None:
            return self.likely_end(text, gap)
        is_same = text[gap.low : gap.high] == self.trailer + self.header
        return gap.low + len(self.trailer) if is_same else -1

    def likely_end(self, text: str, gap: Gap) -> int:
        """Return the end of the first message if one side of the gap is like this; or -1."""
        low, high = gap.low, gap.high
        if high is not None and self.header is not None:
            end = high - len(self.header)
            if end >= (low or 0) and text.startswith(self.header, end):
                return end
        if low is not None and self.trailer is not None:
            end = low + len(self.trailer)
            if (high is None or end <= high) and text.startswith(self.trailer, low):
                return end
        return -1


class Frames:
    """What one template, with the same variables, writes between messages."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._frames: dict[Pair, tuple[Frame, ...]] = {}
        self._num_lessons: dict[Pair, int] = {}

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
        if end < 0 and self._num_lessons.get(pair, 0) < MAX_LESSONS:
            self._learn(pair, conversation, index)
            end = self._exact_end(pair, text, gaps)
        return end if end >= 0 else self._likely_end(pair, text, gaps)

    def _exact_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._frames.get(pair, ())
        ends = (frame.exact_end(text, gap) for gap in gaps for frame in frames)
        return next((end for end in ends if end >= 0), -1)

    def _likely_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._frames.get(pair, ())
        ends = (frame.likely_end(text, gap) for gap in gaps for frame in frames)
        end = next((end for end in ends if end >= 0), -1)
        low, high = gaps[-1].low, gaps[-1].high
        if end < 0 and high is not None:
            opening = _common_opening([frame.header or "" for frame in frames])
            if opening:
                end = text.rfind(opening, low or max(0, high - MAX_HEADER_CHARS), high)
        if end < 0 and low is not None:
            closing = _common_closing([frame.trailer or "" for frame in frames])
            if closing:
                limit = low + MAX_TRAILER_CHARS if high is None else high
                pos = text.find(closing, low, limit)
                end = pos + len(closing) if pos >= 0 else -1
        has_calls = pair[1]  # which stand behind the text
        return low if end < 0 and low is not None and not has_calls else end

    def _learn(self, pair: Pair, conversation: Conversation, index: int) -> None:
        """Learn from a window with the message and the next; costs two renderings, or four.

        The last lesson is from the whole conversation up to there: some templates write something
        else the first time, or refuse a window.
        """
        number = self._num_lessons.get(pair, 0) + 1
        self._num_lessons[pair] = number
        stop = min(index + 2, len(conversation.messages))
        if number < MAX_LESSONS:
            window = take_window(conversation, index, stop)
        else:
            window = take_messages(conversation, range(stop), conversation.tools)
        frames = self._read_frames(window, stop - index - 1, pair)
        self._frames[pair] = (*self._frames.get(pair, ()), *frames)

    def _read_frames(self, window: Conversation, num_behind: int, pair: Pair) -> list[Frame]:
        num_before = len(window.messages) - num_behind
        windows = [_without_reasoning(window, num_before)]
        if any("reasoning_content" in message for message in window.messages[num_before:]):
            windows.append(_without_reasoning(window, len(window.messages)))
        frames = (self._read_frame(each, num_before, has_calls=pair[1]) for each in windows)
        return [frame for frame in frames if frame is not None]

    def _read_frame(
        self, window: Conversation, num_before: int, *, has_calls: bool
    ) -> Frame | None:
        """Read the frame behind the first `num_before` messages of a window."""
        is_last = num_before == len(window.messages)
        before = take_messages(window, range(num_before), window.tools)
        sentinel = choose_sentinel(window.messages, window.tools, window.documents)
        if sentinel is None:
            return None
        shorter = self._render(before, False)
        marked = self._render(mark_messages(window, sentinel), is_last)
        if shorter is None or marked is None:
            return None
        text, spans = take_marks_out(marked, sentinel)
        low = spans[num_before - 1].end if num_before - 1 in spans else None
        following = spans.get(num_before)
        high = len(text) if is_last else following.start if following else None
        end = _find_end(shorter, text, low or 0, len(text) if high is None else high)
        return Frame(
            trailer=None if low is None or has_calls else text[low:end],
            header=None if high is None else text[end:high],
        )


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


def _without_reasoning(window: Conversation, stop: int) -> Conversation:
    """Return the window without reasoning before `stop`: it may go when a message is added.

    Texts are stripped, so that no white space of theirs is taken for a part of the frame.
    """
    messages = []
    for i, message in enumerate(window.messages):
        kept = {
            key: value.strip() if key in MARKED_FIELDS else value for key, value in message.items()
        }
        if i < stop:
            kept.pop("reasoning_content", None)
        messages.append(kept)
    return replace(window, messages=messages)


def _find_end(shorter: str, text: str, low: int, high: int) -> int:
    """Return where, between `low` and `high`, what ends as the shorter prompt does ends."""
    end = common_prefix(shorter, text)
    if end < max(low, len(shorter) - MAX_TAIL_CHARS):
        # The shorter prompt is different before that: Qwen3 puts empty reasoning into the last
        # reply only. Its last words still show where the message ends.
        tail = shorter[-NUM_TAIL_CHARS:]
        pos = text.rfind(tail, max(0, low - len(tail)), high)
        end = pos + len(tail) if pos >= 0 else end
    return min(max(end, low), high)


def _possible_gaps(
    conversation: Conversation, index: int, text: str, spans: Mapping[int, Span]
) -> Iterator[Gap]:
    """Yield the gap behind a message with, and without, the white space around both texts.

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


def _common_closing(trailers: list[str]) -> str:
    """Return how all trailers end, if that is enough to be recognised by."""
    return _common_opening([trailer[::-1] for trailer in trailers])[::-1]


def _common_opening(headers: list[str]) -> str:
    """Return how all headers begin, if that is enough to be recognised by."""
    if len(headers) < 2:
        return ""
    opening = headers[0]
    for header in headers[1:]:
        opening = opening[: common_prefix(opening, header)]
    return opening if len(opening) >= MIN_OPENING_CHARS else ""

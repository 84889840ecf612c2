"""Reads in the prompts of one template where messages stand and end.

Belongs to `boundaries`. Reads a conversation that goes on from a known one only from the first
message that is new or stands elsewhere: those few messages are rendered alone, and must come out
as they stand in the prompt.

Rendering the conversation up to each message would cost a rendering for every one. What stands
between two messages depends on little more than their roles: so it is learnt (`history_probe`) from
a small window of the conversation when a pair of roles is seen first, and afterwards only
recognised. The generation prompt counts as the message after the last one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation.conversation import (
    TEXT_FIELDS,
    Conversation,
    Message,
    MessageSpan,
    count_head,
    count_shared,
    has_same_head,
    mark_messages,
    take_marks_out,
    take_messages,
    take_window,
    window_indices,
)
from milepost.chat.conversation.rendered_prompt import RenderedPrompt, common_prefix, common_suffix
from milepost.chat.conversation.sentinels import choose_sentinel
from milepost.chat.prompts.reply_matching import NOTHING_FOUND, RepliesFound
from milepost.chat.templates.frame_probe import Frame, Pair
from milepost.chat.templates.history_probe import HistoryProfile
from milepost.chat.templates.template import ChatTemplate
from milepost.errors import TemplateFailed

FIRST_TEXTS = ("alpha", "beta")  # of the user; they agree in nothing
# How far a system end goes back to stand after a control token. Chosen for role names and line
# breaks: the first of the user's words can be merged with those, and then it is none.
MAX_SEAM_CHARS = 32
NUM_BEFORE_CHARS = 8  # arbitrary
MAX_SEARCHED_CHARS = 20_000  # of tool calls between two texts; arbitrary
MAX_LESSONS = 3  # per pair of roles; arbitrary: some templates write something new every time
# Arbitrary, by what published templates write.
MAX_HEADER_CHARS = MAX_TRAILER_CHARS = 400
MIN_START_CHARS = 8


@dataclass(frozen=True, slots=True)
class History:
    """A prompt and what was found in it."""

    conversation: Conversation
    prompt: RenderedPrompt
    spans: Mapping[int, MessageSpan]  # of messages, as far as found
    ends: tuple[int, ...]  # of each message; -1 where not known
    head_text: str  # what all prompts with these system messages and tools begin with, mostly
    num_shared: int = 0  # messages that the known prompt begins with, too
    num_unmoved: int = 0  # of these, the first ones that stand where they did
    replies: RepliesFound = NOTHING_FOUND

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return self.prompt.text

    @property
    def system_end(self) -> int:
        """How much of the prompt any other with these system messages and tools has too."""
        # Some templates write the tools elsewhere once there are more messages.
        return common_prefix(self.head_text, self.text)


class PromptReader:
    """Reads the prompts of a template that is given the same variables every time."""

    def __init__(
        self, template: ChatTemplate, kwargs: Mapping[str, Any], *, has_tools: bool
    ) -> None:
        self._template = template
        self._kwargs = dict(kwargs)
        self.profile = template.profile.history(self._kwargs, has_tools=has_tools)
        self._ends = EndFinder(self.profile)

    def read_prompt(
        self,
        conversation: Conversation,
        prompt: RenderedPrompt,
        known: History | None,
        *,
        add_generation_prompt: bool,
    ) -> History:
        """Find the messages in the prompt of a conversation.

        `known` is an earlier prompt of this template that begins with some of the same messages.
        """
        text = prompt.text
        num_messages = len(conversation.messages)
        ends = [-1] * num_messages
        spans: dict[int, MessageSpan] = {}
        num_shared = first = 0
        if known is not None:
            num_shared = count_shared(known.conversation, conversation)
            first = _count_unmoved(known, conversation, text, num_shared)
            ends[:first] = known.ends[:first]
            spans = {i: span for i, span in known.spans.items() if i < first}
        if first < num_messages:
            spans |= self._locate(conversation, text, first, add_generation_prompt)
        num_ending = num_messages if add_generation_prompt else num_messages - 1
        last_end = max(ends, default=0)
        for i in range(first, num_ending):
            end = self._ends.find_end(conversation, i, text, spans)
            if end >= last_end:
                ends[i] = last_end = end
        head_text = self._render_head(conversation, text, known)
        return History(conversation, prompt, spans, tuple(ends), head_text, num_shared, first)

    def rewrites_replies(self, conversation: Conversation) -> bool:
        """See `HistoryProfile.learn_rewrites`."""
        messages = conversation.messages
        role = messages[-1]["role"]
        has_reasoning = any("reasoning_content" in message for message in messages)
        known = self.profile.rewrites.get((role, has_reasoning))
        if known is None:
            return self.profile.learn_rewrites(role, has_reasoning=has_reasoning)
        return known

    def _locate(
        self, conversation: Conversation, text: str, first: int, add_generation_prompt: bool
    ) -> dict[int, MessageSpan]:
        """Return where the messages from `first` on stand."""
        sentinel = choose_sentinel(text, conversation.messages[first:])
        if sentinel is None:
            return {}
        num_messages = len(conversation.messages)
        indices = window_indices(conversation, first, num_messages)
        if len(indices) < num_messages:
            window = take_window(conversation, first, num_messages)
            num_before = len(indices) - (num_messages - first)
            marked = self._render(
                mark_messages(window, sentinel, num_before), add_generation_prompt
            )
            located, is_complete = _match(marked, sentinel, text)
            if is_complete:
                return {indices[i]: span for i, span in located.items()}
        marked = self._render(mark_messages(conversation, sentinel, first), add_generation_prompt)
        return _match(marked, sentinel, text)[0]

    def _render_head(self, conversation: Conversation, text: str, known: History | None) -> str:
        """Return what all conversations with these system messages and tools begin with."""
        num_head = count_head(conversation.messages)
        if num_head == 0 and not conversation.tools:
            return ""
        if (
            known is not None
            and has_same_head(known.conversation, conversation)
            and text.startswith(known.head_text)
        ):
            return known.head_text
        prompts = []
        head = take_messages(conversation, range(num_head), conversation.tools)
        for first_text in FIRST_TEXTS:
            messages = [*head.messages, {"role": "user", "content": first_text}]
            prompt = self._render_prompt(replace(head, messages=messages), True)
            if prompt is None:
                return ""
            prompts.append(prompt)
        end = common_prefix(prompts[0].text, prompts[1].text)
        seam = self._template.controls.seam_before(prompts[0], end, MAX_SEAM_CHARS)
        return prompts[0].text[:seam]

    def _render(self, conversation: Conversation, add_generation_prompt: bool) -> str | None:
        prompt = self._render_prompt(conversation, add_generation_prompt)
        return None if prompt is None else prompt.text

    def _render_prompt(
        self, conversation: Conversation, add_generation_prompt: bool
    ) -> RenderedPrompt | None:
        try:
            return self._template.render(
                conversation, add_generation_prompt=add_generation_prompt, kwargs=self._kwargs
            )
        except TemplateFailed:
            return None


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
        self, conversation: Conversation, index: int, text: str, spans: Mapping[int, MessageSpan]
    ) -> int:
        """Return where a message ends in a prompt; -1 when that cannot be said.

        `spans` are those of the messages in `text`, as far as they are known.
        """
        gaps = list(_possible_gaps(conversation, index, text, spans))
        if gaps == [Gap(None, None)]:
            return -1
        pair = _pair(conversation.messages, index)
        end = self._exact_end(pair, text, gaps)
        if end < 0 and self._history.num_lessons.get(pair, 0) < MAX_LESSONS:
            self._learn(pair, conversation, index)
            end = self._exact_end(pair, text, gaps)
        return end if end >= 0 else self._likely_end(pair, text, gaps)

    def _exact_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._history.frames.get(pair, ())
        ends = (_exact_end(frame, text, gap) for gap in gaps for frame in frames)
        return next((end for end in ends if end >= 0), -1)

    def _likely_end(self, pair: Pair, text: str, gaps: list[Gap]) -> int:
        frames = self._history.frames.get(pair, ())
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
        if self._history.num_lessons.get(pair, 0) + 1 < MAX_LESSONS:
            window = take_window(conversation, index, stop)
        else:
            window = take_messages(conversation, range(stop), conversation.tools)
        num_before = len(window.messages) - (stop - index - 1)
        self._history.learn_frames(pair, window, num_before)


def _count_unmoved(known: History, conversation: Conversation, text: str, num_shared: int) -> int:
    """Return how many of the shared messages of a known prompt stand in this one as they did.

    Where both texts agree up to the end of a message, this is its end here too: the prompt of the
    conversation up to it, by which ends are defined, is the same.
    """
    num_agreeing = common_prefix(known.text, text)
    if num_shared == len(conversation.messages) < len(known.conversation.messages):
        num_shared -= 1  # there, something other than the generation prompt is after the last one
    for i in reversed(range(num_shared)):
        if 0 <= known.ends[i] <= num_agreeing:
            return i + 1
    return 0


def _match(marked: str | None, sentinel: str, text: str) -> tuple[dict[int, MessageSpan], bool]:
    """Return where marked messages stand in a text, and whether none is missing.

    They count where the text without marks has a common start or end with the other.
    """
    if marked is None:
        return {}, False
    rendered, spans = take_marks_out(marked, sentinel)
    prefix_end = common_prefix(rendered, text)
    suffix_start = len(rendered) - common_suffix(rendered, text)
    moved = len(text) - len(rendered)
    located: dict[int, MessageSpan] = {}
    limit = len(text)
    for i in sorted(spans, reverse=True):
        span = spans[i]
        if span.start >= suffix_start:
            start = span.start + moved
        elif span.end <= prefix_end:
            start = span.start
        else:
            start = _search(rendered, span, text, limit)
        if start >= 0:
            limit = start
            located[i] = MessageSpan(start, start + span.end - span.start)
    return located, len(located) == len(spans)


def _search(rendered: str, span: MessageSpan, text: str, limit: int) -> int:
    """Return where a span of one text, mostly with what is right before it, is in the other; or -1.

    Looked for right before `limit`, where the next message begins: templates that number their
    tool calls write other numbers in a window.
    """
    before = min(NUM_BEFORE_CHARS, span.start)
    length = span.end - span.start
    floor = max(0, limit - before - length - MAX_SEARCHED_CHARS)
    pos = text.rfind(rendered[span.start - before : span.end], floor, limit)
    if pos >= 0:
        return pos + before
    return text.rfind(rendered[span.start : span.end], floor, limit) if length >= before else -1


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
    conversation: Conversation, index: int, text: str, spans: Mapping[int, MessageSpan]
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
    texts = [text for key in TEXT_FIELDS if (text := message.get(key, "")).strip()]
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

"""Reads in the prompts of one template where messages stand and end.

Belongs to `boundaries`. Reads a conversation that goes on from a known one only from the first
message that is new or stands elsewhere: those few messages are rendered alone, and must come out
as they stand in the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.message_spans import (
    Span,
    common_prefix,
    common_suffix,
    mark_messages,
    take_marks_out,
    take_messages,
)
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.conversation.sentinels import choose_sentinel
from milepost.chat.prompts.message_ends import EndFinder, count_head, take_window, window_indices
from milepost.chat.prompts.reply_matching import NOTHING_FOUND, RepliesFound
from milepost.chat.templates.template import ChatTemplate
from milepost.errors import TemplateFailed

FIRST_TEXTS = ("alpha", "beta")  # of the user; they agree in nothing
# How far a system end goes back to stand after a control token. Chosen for role names and line
# breaks: the first of the user's words can be merged with those, and then the place is none.
MAX_SEAM_CHARS = 32
NUM_BEFORE_CHARS = 8  # arbitrary
MAX_SEARCHED_CHARS = 20_000  # of tool calls between two texts; arbitrary


@dataclass(frozen=True, slots=True)
class History:
    """A prompt and what was found in it."""

    conversation: Conversation
    prompt: RenderedPrompt
    spans: Mapping[int, Span]  # of messages, as far as found
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
        self._history = template.profile.history(self._kwargs, has_tools=has_tools)
        self._ends = EndFinder(self._history)

    def read(
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
        spans: dict[int, Span] = {}
        num_shared = first = 0
        if known is not None:
            num_shared = count_shared(known.conversation, conversation)
            first = _count_unmoved(known, conversation, text, num_shared)
            ends[:first] = known.ends[:first]
            spans = {i: span for i, span in known.spans.items() if i < first}
        if first < num_messages:
            spans |= self._place(conversation, text, first, add_generation_prompt)
        num_ending = num_messages if add_generation_prompt else num_messages - 1
        last_end = max(ends, default=0)
        for i in range(first, num_ending):
            end = self._ends.find_end(conversation, i, text, spans)
            if end >= last_end:
                ends[i] = last_end = end
        head_text = self._render_head(conversation, text, known)
        return History(conversation, prompt, spans, tuple(ends), head_text, num_shared, first)

    def rewrites_replies(self, conversation: Conversation) -> bool:
        """See `HistoryProfile.rewrites_replies`."""
        messages = conversation.messages
        has_reasoning = any("reasoning_content" in message for message in messages)
        return self._history.rewrites_replies(messages[-1]["role"], has_reasoning=has_reasoning)

    @property
    def drops_reasoning(self) -> bool:
        """See `HistoryProfile.drops_reasoning`."""
        return self._history.drops_reasoning

    @property
    def reply_trailer(self) -> str | None:
        """See `HistoryProfile.reply_trailer`."""
        return self._history.reply_trailer

    def _place(
        self, conversation: Conversation, text: str, first: int, add_generation_prompt: bool
    ) -> dict[int, Span]:
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
            placed, is_complete = _match(marked, sentinel, text)
            if is_complete:
                return {indices[i]: span for i, span in placed.items()}
        marked = self._render(mark_messages(conversation, sentinel, first), add_generation_prompt)
        return _match(marked, sentinel, text)[0]

    def _render_head(self, conversation: Conversation, text: str, known: History | None) -> str:
        """Return what all conversations with these system messages and tools begin with."""
        num_head = count_head(conversation.messages)
        if num_head == 0 and not conversation.tools:
            return ""
        if (
            known is not None
            and _has_same_head(known.conversation, conversation, num_head)
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


def count_shared(one: Conversation, other: Conversation) -> int:
    """Return how many messages both conversations begin with."""
    num_shared = 0
    for message, other_message in zip(one.messages, other.messages, strict=False):
        if message != other_message:
            break
        num_shared += 1
    return num_shared


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


def _match(marked: str | None, sentinel: str, text: str) -> tuple[dict[int, Span], bool]:
    """Return the places of marked messages in a text, and whether none is missing.

    They count where the text without marks has a common start or end with the other.
    """
    if marked is None:
        return {}, False
    rendered, spans = take_marks_out(marked, sentinel)
    prefix_end = common_prefix(rendered, text)
    suffix_start = len(rendered) - common_suffix(rendered, text)
    moved = len(text) - len(rendered)
    placed: dict[int, Span] = {}
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
            placed[i] = Span(start, start + span.end - span.start)
    return placed, len(placed) == len(spans)


def _search(rendered: str, span: Span, text: str, limit: int) -> int:
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


def _has_same_head(one: Conversation, other: Conversation, num_head: int) -> bool:
    return (
        count_head(one.messages) == num_head
        and one.messages[:num_head] == other.messages[:num_head]
        and one.tools == other.tools
        and one.documents == other.documents
    )

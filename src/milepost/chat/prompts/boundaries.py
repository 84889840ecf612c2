"""Marks where in a prompt a later request may stop sharing it.

Called once per request, after the rendering. What was found for a conversation is remembered, so
that its next turn costs a rendering of the new messages only. Nothing here changes a prompt, and
no failure of a template reaches the request: a boundary that cannot be found is left out.

`system_end`    of what all conversations with the same system messages and tools begin with
`date`          before the first line of the system messages that names a date or a time
`message_end`   of one message
`last_user`     before the last user message, and where its template will drop reasoning, after it;
                instead of the former, before what an agent moves along at the end of its last one
`prompt_end`    of the last message, before the generation prompt
`breakpoint`    where the client says so, and none of the above that is always met exactly is
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from milepost.chat.conversation.conversation import (
    Breakpoint,
    Conversation,
    count_head,
    count_shared,
    media_in,
)
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.prompts.prompt_reader import History, PromptReader
from milepost.chat.prompts.reply_matching import (
    NOTHING_FOUND,
    PromptOutline,
    RepliesFound,
    ReplyCounts,
    ReplyMatcher,
)
from milepost.chat.templates.template import ChatTemplate, TemplateSet
from milepost.kinds import TOOL_ROLES, BoundaryKind
from milepost.lru import LruCache

MAX_HISTORIES = 32  # conversations remembered; arbitrary: about a megabyte each at 100k tokens
MAX_READERS = 16  # combinations of template and variables remembered; arbitrary
MIN_SYSTEM_CHARS = 256  # less is computed faster than it is fetched; arbitrary
NUM_TAIL_CHARS = 16  # by which it is recognised, for the rest may change; arbitrary
MAX_GENERATION_CHARS = 4000  # of the end of a prompt that are searched; arbitrary
NUM_CONTENT_CHARS = 200  # of the end of a message that is looked for there; arbitrary
TAIL_ROLES = ("user", *TOOL_ROLES)
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


@dataclass(frozen=True, slots=True)
class TextBoundary:
    """A boundary at an offset into the text of a prompt."""

    offset: int
    kind: BoundaryKind
    message_index: int = -1  # of the message that ends there
    role: str = ""


@dataclass(frozen=True, slots=True)
class PromptBoundaries:
    """What is known about where later requests will leave a prompt."""

    boundaries: tuple[TextBoundary, ...] = ()  # in rising order
    keeps_prompt_end: bool = False  # they may leave it between `prompt_end` and its last token
    replies: RepliesFound = NOTHING_FOUND  # with the tokens of those that were sampled here
    generation_prompt: str | None = None  # None where it is not known


class BoundaryFinder:
    """Finds the boundaries of prompts that the templates of one model made.

    Two threads may prepare requests at once: what is remembered is never changed, and at worst one
    of two histories is forgotten.
    """

    def __init__(self, templates: TemplateSet, replies: ReplyMatcher | None = None) -> None:
        self._templates = templates
        self._replies = replies
        self._readers: LruCache[tuple[int, str, bool], PromptReader] = LruCache(MAX_READERS)
        # By the ids of the histories.
        self._histories: LruCache[int, tuple[PromptReader, History]] = LruCache(MAX_HISTORIES)

    @property
    def reply_counts(self) -> ReplyCounts:
        """What became of the replies in all conversations since the start."""
        return ReplyCounts() if self._replies is None else self._replies.counts

    def forget_conversations(self) -> None:
        """Forget all conversations; each costs more again once, and nothing else changes."""
        self._histories.clear()

    def find_boundaries(
        self,
        conversation: Conversation,
        rendered: RenderedPrompt,
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> PromptBoundaries:
        """Return the boundaries of a prompt; the arguments are those that it was rendered from."""
        reader = self._reader(conversation, kwargs or {})
        known = self._recall(reader, conversation)
        history = reader.read_prompt(
            conversation, rendered, known, add_generation_prompt=add_generation_prompt
        )
        history = self._match_replies(reader, history, known)
        self._remember(reader, history, known)
        moving = _find_moving(history, known)
        found = list(_boundaries(reader, history, moving))
        found += _breakpoints(history, found)
        found.sort(key=lambda boundary: boundary.offset)
        keeps = add_generation_prompt and reader.rewrites_replies(conversation)
        is_known = add_generation_prompt and history.ends[-1] >= 0
        generation_prompt = history.text[history.ends[-1] :] if is_known else None
        return PromptBoundaries(tuple(found), keeps, history.replies, generation_prompt)

    def _match_replies(
        self, reader: PromptReader, history: History, known: History | None
    ) -> History:
        if self._replies is None:
            return history
        found = NOTHING_FOUND if known is None else known.replies
        outline = PromptOutline(
            history.conversation,
            history.prompt,
            history.spans,
            history.ends,
            reader.profile.reply_trailer,
        )
        num_same = 0 if known is None else _count_same(known, history)
        num_unmoved = min(history.num_unmoved, num_same)
        replies = self._replies.match_replies(outline, found, num_same, num_unmoved)
        return replace(history, replies=replies)

    def _reader(self, conversation: Conversation, kwargs: Mapping[str, Any]) -> PromptReader:
        template = self._templates.choose(conversation)
        has_tools = bool(conversation.tools)
        key = (id(template), json.dumps(kwargs, sort_keys=True, default=str), has_tools)
        reader = self._readers.get(key)
        if reader is None:
            reader = PromptReader(template, kwargs, has_tools=has_tools)
            self._readers.put(key, reader)
        return reader

    def _recall(self, reader: PromptReader, conversation: Conversation) -> History | None:
        """Return the history that shares most messages, the latest of those; None if none does."""
        best, most = None, 0
        for its_reader, history in reversed(self._histories.values()):
            if its_reader is reader:
                num_shared = count_shared(history.conversation, conversation)
                if num_shared > most:
                    best, most = history, num_shared
        return best

    def _remember(self, reader: PromptReader, history: History, known: History | None) -> None:
        if known is not None:
            if history.num_shared < len(known.conversation.messages):
                self._histories.get(id(known))  # this is a branch of it, and both may go on
            else:
                self._histories.pop(id(known))
        self._histories.put(id(history), (reader, history))


def _count_same(known: History, history: History) -> int:
    """Return how many of the shared messages have the same images and audio, too."""
    one, other = known.conversation, history.conversation
    if one.media:
        for i in range(history.num_shared):
            if media_in(one.messages[i], one) != media_in(other.messages[i], other):
                return i
    return history.num_shared


def _boundaries(reader: PromptReader, history: History, moving: int) -> Iterator[TextBoundary]:
    messages = history.conversation.messages
    if history.system_end >= MIN_SYSTEM_CHARS:
        last = count_head(messages) - 1
        yield TextBoundary(history.system_end, "system_end", last, "system")
        yield from _before_date(history)
    for i, end in enumerate(history.ends):
        if end >= 0:
            kind: BoundaryKind = "message_end" if i < len(messages) - 1 else "prompt_end"
            yield TextBoundary(end, kind, i, messages[i]["role"])
    if moving >= 0:
        yield TextBoundary(moving, "last_user", len(messages) - 1, messages[-1]["role"])
    for i in _last_stable_messages(reader, history, moving):
        if history.ends[i] >= 0:
            yield TextBoundary(history.ends[i], "last_user", i, messages[i]["role"])


def _before_date(history: History) -> Iterator[TextBoundary]:
    """Yield where in the system messages begins what will change some day."""
    messages = history.conversation.messages
    for i in range(count_head(messages)):
        num_chars = find_date(messages[i]["content"])
        if num_chars < 0:
            continue
        span = history.spans.get(i)
        offset = -1
        if span is not None:
            offset = find_part_end(history.text, span.end, messages[i]["content"], num_chars)
        if offset >= MIN_SYSTEM_CHARS:
            yield TextBoundary(offset, "date", i, messages[i]["role"])
        return


def _find_moving(history: History, known: History | None) -> int:
    """Return up to where the last message will stay as it is; -1: to its end, for all we know."""
    messages = history.conversation.messages
    span = history.spans.get(len(messages) - 1)
    if known is None or span is None:
        return -1
    num_chars = find_moving_tail(history.conversation, known.conversation, history.num_shared)
    return find_part_end(history.text, span.end, messages[-1]["content"], num_chars)


def _last_stable_messages(reader: PromptReader, history: History, moving: int) -> Iterator[int]:
    """Yield the messages after which the prompt may change when the user speaks again."""
    messages = history.conversation.messages
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        return
    last = users[-1]
    if last > count_head(messages) and not (moving >= 0 and last == len(messages) - 1):
        yield last - 1
    reasons = any("reasoning_content" in message for message in messages[last + 1 :])
    if reasons and reader.profile.drops_reasoning:
        yield last


def _breakpoints(history: History, others: Iterable[TextBoundary]) -> Iterator[TextBoundary]:
    """Yield the client's own boundaries where no other that is met exactly stands for them.

    `prompt_end` stands for the mark after the last message, which many clients send with every
    request, even where it is no place for a state: the one after the generation prompt costs
    nothing, and the next turn goes on from there.
    """
    messages = history.conversation.messages
    end_of_head = Breakpoint(count_head(messages) - 1)  # of which `system_end` is the better end
    taken = {other.offset for other in others if other.kind != "message_end"}
    for mark in history.conversation.breakpoints:
        if mark == end_of_head and history.system_end > 0:
            continue
        offset = _locate(mark, history)
        if offset > 0 and offset not in taken:
            taken.add(offset)
            index = mark.message_index
            yield TextBoundary(offset, "breakpoint", index, messages[index]["role"])


def _locate(mark: Breakpoint, history: History) -> int:
    """Return the offset of a mark; the end of its message if the part cannot be found; or -1."""
    index = mark.message_index
    span = history.spans.get(index)
    if mark.num_chars >= 0 and span is not None:
        content = history.conversation.messages[index]["content"]
        offset = find_part_end(history.text, span.end, content, mark.num_chars)
        if offset >= 0:
            return offset
    return history.ends[index]


def find_date(text: str) -> int:
    """Return where the line begins that names the first date or time of a text; -1 if none does.

    Agents put the date into their system prompt, often in front of tools and rules that stay the
    same, and at midnight everything after it is new. Where it stands could be learnt from the
    first change, but only at the price of all that stands before it, in each open conversation.
    """
    found = DATE.search(text)
    return text.rfind("\n", 0, found.start()) + 1 if found else -1


def find_moving_tail(conversation: Conversation, known: Conversation, num_shared: int) -> int:
    """Return how much of the last message stands before text that has moved there; 0: none has.

        turn 1   user: fix the test ⟨reminder⟩
        turn 2   user: fix the test               …    user: now the other one ⟨reminder⟩

    A turn parts from the one before where the moved text began. That is inside a message, where
    nothing else has a state; but it is seen to have moved, and the next turn will part where it
    stands now. So no form of reminder has to be known. `known` is an earlier turn, which begins
    with the same `num_shared` messages.
    """
    last = conversation.messages[-1]
    if not num_shared < min(len(conversation.messages) - 1, len(known.messages)):
        return 0
    before, after = known.messages[num_shared], conversation.messages[num_shared]
    if last["role"] not in TAIL_ROLES or before["role"] != after["role"]:
        return 0
    if not after["content"] or not before["content"].startswith(after["content"]):
        return 0  # one that is empty now was blanked
    moved = before["content"][len(after["content"]) :].lstrip()[:NUM_TAIL_CHARS]
    pos = last["content"].rfind(moved) if len(moved) == NUM_TAIL_CHARS else -1
    return len(last["content"][: max(pos, 0)].rstrip())


def find_part_end(text: str, end: int, content: str, num_chars: int) -> int:
    """Return where the first characters of a content end in a text.

    The content is written up to `end` in it, without white space around, which templates trim;
    -1 where it is not.
    """
    body = content.strip()
    num_body_chars = num_chars - (len(content) - len(content.lstrip()))
    if not 0 < num_body_chars < len(body) or not text.endswith(body, 0, end):
        return -1
    return end - len(body) + num_body_chars


def find_generation_prompt(
    prompt: RenderedPrompt, conversation: Conversation, template: ChatTemplate
) -> str:
    """Return what begins the reply in a prompt of which is not known where the last message ends.

    That is what stands after the last control token, but for those of reasoning, and after the
    last message, if that has none after it; "" where neither is found. Text of messages must not
    be taken for it: it may speak of reasoning.
    """
    reasoning = template.reply_format.reasoning
    if reasoning is None:
        return ""
    part = prompt.part(max(0, len(prompt.text) - MAX_GENERATION_CHARS))
    markers = f"{reasoning.start}\n{reasoning.end}"
    spans = template.controls.token_spans(part)
    start = max((end for first, end in spans if part.text[first:end] not in markers), default=-1)
    content = conversation.messages[-1]["content"].strip()[-NUM_CONTENT_CHARS:]
    is_unframed = content not in part.text[: max(start, 0)]
    if content and (is_unframed or reasoning.start.strip() in content):
        found = part.text.rfind(content, max(start, 0))
        start = found + len(content) if found >= 0 else start
    if start < 0 or any(mark > start for mark in part.marks):
        return ""
    return part.text[start:]

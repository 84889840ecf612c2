"""What a conversation is: checked messages and tools that chat templates can render.

Each dialect of the API parses its messages and hands them to `make_conversation`. Knows no
template: what single templates want changed is in `message_forms`.

To find where messages stand in a prompt, the conversation is rendered once more with a mark
(`sentinels`) before and after the text of each; the marks are taken out again. A mark is inside of
surrounding white space, which templates trim, and carries the number of its message, because
templates leave texts out and move them. Whether marks changed what a template does shows in the
comparison with the real prompt: spans count only where the texts agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from milepost.chat.conversation.media_parts import (
    MediaPart,
    choose_media_sentinel,
    join_parts,
)
from milepost.chat.conversation.sentinels import find_markers, write_marker
from milepost.kinds import SYSTEM_ROLES, TOOL_ROLES

# Templates read plain dicts, so messages stay dicts here, against the rule for records.
Message = dict[str, Any]

ROLES = (*SYSTEM_ROLES, "user", "assistant", *TOOL_ROLES)
TEXT_FIELDS = ("reasoning_content", "content")  # of messages, which are found by them
MAX_BREAKPOINTS = 80  # of one request, the latest; as many as OpenAI looks at


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A place that the client marks as the end of a prefix that it will send again.

    Templates see no marks: they are read before, and placed in the prompt after, the rendering.
    """

    message_index: int
    num_chars: int = -1  # of the content, up to the mark; -1: the end of the message


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of the content of a message as a client sends it."""

    content: str | MediaPart
    is_breakpoint: bool = False  # the client marks its end; that of the last part: the message's


@dataclass(frozen=True, slots=True)
class Conversation:
    """A checked conversation; never changed once made, so renderings may share its parts.

    In each message `content` is a string, with markers in it where images and audio stand, fields
    that were null are left out, and the `arguments` of tool calls are what their JSON text stands
    for (mostly an object, in the order of its keys).
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None  # None instead of an empty list
    documents: list[Any] | None = None
    # (message index, call index) -> the JSON text of its arguments as it arrived
    argument_texts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    breakpoints: tuple[Breakpoint, ...] = ()  # no part of what templates see
    media: tuple[MediaPart, ...] = ()  # marker number i stands for media[i]
    sentinel: str = ""  # of the markers of media; "" without any
    # (message index, offset): newlines of its content that stand between two parts of text
    seams: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Where a message's own text stands: from its first to its last character, without frame."""

    start: int
    end: int


def make_conversation(
    messages: Iterable[Mapping[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    documents: list[Any] | None = None,
) -> Conversation:
    """Return the conversation of well-formed messages, which are not changed.

    Each has the fields that templates read: a `role` of `ROLES`, `content`, and where there are,
    `reasoning_content`, `name`, `tool_call_id` and `tool_calls`, in OpenAI's shape. Content is a
    text or a list of `ContentPart`: texts are joined by newlines, as llama-server does; images and
    audio become markers between them (`media_parts`). The arguments of calls are objects or JSON
    text; what is no JSON is kept as text.

    Raises InvalidRequest if markers cannot be told from the texts.
    """
    given = list(messages)
    media = tuple(_media_of(given))
    sentinel = choose_media_sentinel(tools, documents, list(_texts_of(given))) if media else ""
    argument_texts: dict[tuple[int, int], str] = {}
    breakpoints: list[Breakpoint] = []
    seams: list[tuple[int, int]] = []
    made: list[Message] = []
    num_media = 0
    for i, message in enumerate(given):
        made.append(dict(message))
        if isinstance(message["content"], list):
            parts = [part.content for part in message["content"]]
            made[i]["content"], ends = join_parts(parts, sentinel, num_media)
            num_media += sum(isinstance(part, MediaPart) for part in parts)
            breakpoints.extend(_read_breakpoints(i, message["content"], ends))
            seams.extend((i, end) for end in _find_seams(parts, ends))
        if message.get("tool_calls"):
            made[i]["tool_calls"] = list(_read_calls(i, message["tool_calls"], argument_texts))
    return Conversation(
        made,
        tools or None,
        documents or None,
        argument_texts,
        tuple(breakpoints[-MAX_BREAKPOINTS:]),
        media,
        sentinel,
        tuple(seams),
    )


def close_seams(conversation: Conversation) -> Conversation:
    """Return the conversation with parts of text one right after the other, without newlines."""
    if not conversation.seams:
        return conversation
    messages = list(conversation.messages)
    for index, offset in reversed(conversation.seams):
        text = messages[index]["content"]
        messages[index] = {**messages[index], "content": text[:offset] + text[offset + 1 :]}
    breakpoints = tuple(
        replace(each, num_chars=each.num_chars - _count_seams(conversation, each))
        for each in conversation.breakpoints
    )
    return replace(conversation, messages=messages, breakpoints=breakpoints, seams=())


def parse_arguments(arguments: str | dict[str, Any] | None) -> tuple[Any, str]:
    """Return what the arguments of a tool call stand for, and their JSON text.

    Text that is no JSON stands for itself.
    """
    if isinstance(arguments, dict):
        return arguments, json.dumps(arguments, ensure_ascii=False)
    if arguments is None or not arguments.strip():
        return {}, "{}"
    try:
        return json.loads(arguments), arguments
    except (ValueError, RecursionError):  # no JSON, or nested too deeply for the decoder
        return arguments, arguments


def media_in(message: Message, conversation: Conversation) -> tuple[MediaPart, ...]:
    """Return the images and audio of a message, in their order."""
    if not conversation.media:
        return ()
    markers = find_markers(message["content"], conversation.sentinel)
    return tuple(conversation.media[marker.number] for marker in markers)


def count_head(messages: list[Message]) -> int:
    """Return how many system messages there are before all others."""
    for i, message in enumerate(messages):
        if message["role"] not in SYSTEM_ROLES:
            return i
    return len(messages)


def count_shared(one: Conversation, other: Conversation) -> int:
    """Return how many messages both conversations begin with."""
    num_shared = 0
    for message, other_message in zip(one.messages, other.messages, strict=False):
        if message != other_message:
            break
        num_shared += 1
    return num_shared


def has_same_head(one: Conversation, other: Conversation) -> bool:
    """Say whether system messages, tools and documents are the same."""
    num_head = count_head(other.messages)
    return (
        count_head(one.messages) == num_head
        and one.messages[:num_head] == other.messages[:num_head]
        and one.tools == other.tools
        and one.documents == other.documents
    )


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


def mark_messages(conversation: Conversation, sentinel: str, first: int = 0) -> Conversation:
    """Return the conversation with marks around the texts of its messages from `first` on."""
    messages = [
        _mark_message(message, write_marker(sentinel, i)) if i >= first else message
        for i, message in enumerate(conversation.messages)
    ]
    return replace(conversation, messages=messages)


def take_marks_out(marked: str, sentinel: str) -> tuple[str, dict[int, MessageSpan]]:
    """Return the text without marks, and where the messages stand in it, by index.

    What a template has put out of order is left out, so the spans do not overlap.
    """
    texts: list[str] = []
    spans: dict[int, MessageSpan] = {}
    pos = done = 0
    for mark in find_markers(marked, sentinel):
        texts.append(marked[done : mark.start])
        pos += mark.start - done
        done = mark.end
        start = spans[mark.number].start if mark.number in spans else pos
        spans[mark.number] = MessageSpan(start, pos)
    texts.append(marked[done:])
    text = "".join(texts)
    return text, _in_order(spans, len(text))


def _media_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[MediaPart]:
    for message in messages:
        if isinstance(message["content"], list):
            for part in message["content"]:
                if isinstance(part.content, MediaPart):
                    yield part.content


def _texts_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages without what images and audio consist of."""
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            texts = [part.content for part in content if isinstance(part.content, str)]
            yield {**message, "content": texts}
        else:
            yield message


def _find_seams(parts: Sequence[str | MediaPart], ends: Sequence[int]) -> Iterator[int]:
    """Yield the offsets of the newlines that `join_parts` has written."""
    for part, next_part, end in zip(parts, parts[1:], ends, strict=False):
        if end and isinstance(part, str) and isinstance(next_part, str):
            yield end


def _count_seams(conversation: Conversation, mark: Breakpoint) -> int:
    """Return how many newlines between parts stand before a breakpoint."""
    return sum(
        index == mark.message_index and offset < mark.num_chars
        for index, offset in conversation.seams
    )


def _read_breakpoints(
    index: int, parts: Iterable[ContentPart], ends: list[int]
) -> Iterator[Breakpoint]:
    for number, (part, end) in enumerate(zip(parts, ends, strict=True), 1):
        if part.is_breakpoint:
            yield Breakpoint(index, end if number < len(ends) else -1)


def _read_calls(
    index: int, calls: Iterable[Message], argument_texts: dict[tuple[int, int], str]
) -> Iterator[Message]:
    """Yield calls with arguments as templates want them; note the texts that they had."""
    for number, call in enumerate(calls):
        function = dict(call["function"])
        function["arguments"], text = parse_arguments(function["arguments"])
        argument_texts[index, number] = text
        yield {**call, "function": function}


def _mark_message(message: Message, mark: str) -> Message:
    marked = message.copy()
    for key in TEXT_FIELDS:
        text = message.get(key, "")
        body = text.strip()
        if body:  # a text that was empty would no longer be
            start = text.index(body)
            end = start + len(body)
            marked[key] = f"{text[:start]}{mark}{body}{mark}{text[end:]}"
    return marked


def _in_order(spans: dict[int, MessageSpan], limit: int) -> dict[int, MessageSpan]:
    """Drop spans that begin after the next message: some templates move the system message."""
    kept: dict[int, MessageSpan] = {}
    for index in sorted(spans, reverse=True):
        if spans[index].end <= limit:
            kept[index] = spans[index]
            limit = spans[index].start
    return kept

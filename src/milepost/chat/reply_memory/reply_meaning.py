"""What a reply says, whatever way it is spelled: the key under which sampled replies are found.

Clients parse what they are sent and write it again: keys in another order, other white space and
escapes in JSON, numbers as their language prints them, ids of their own, trimmed text. None of
that changes the digests made here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message, media_in, parse_arguments
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallStart,
    ContentText,
    ReasoningText,
    ReplyEvent,
)

DIGEST_BYTES = 16
MAX_EXACT = 1 << 53  # larger numbers are changed by clients that have floats only


@dataclass(frozen=True, slots=True)
class ReplyMeaning:
    """Content, reasoning and tool calls of a reply, as a client sees them."""

    content: str
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()  # name, and what the JSON of the arguments stands for

    @property
    def digest(self) -> bytes:
        """The same for all spellings of this reply."""
        return _digest([self.content.strip(), self.reasoning.strip(), self._canonical_calls()])

    @property
    def bare_digest(self) -> bytes:
        """The same for all replies that differ in their reasoning only."""
        return _digest([self.content.strip(), self._canonical_calls()])

    def _canonical_calls(self) -> list[Any]:
        return [
            [name, arguments.strip() if isinstance(arguments, str) else arguments]
            for name, arguments in self.calls
        ]


def meaning_of_message(message: Message) -> ReplyMeaning:
    """Return what an assistant message of a `Conversation` says."""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return ReplyMeaning(
        message["content"],
        message.get("reasoning_content", ""),
        tuple((function["name"], function["arguments"]) for function in functions),
    )


def meaning_of_events(events: Iterable[ReplyEvent]) -> ReplyMeaning:
    """Return what a reply says that was read as these events."""
    content: list[str] = []
    reasoning: list[str] = []
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case ContentText():
                content.append(event.text)
            case ReasoningText():
                reasoning.append(event.text)
            case CallStart():
                names[event.index] = event.name
            case CallArguments():
                arguments[event.index] = arguments.get(event.index, "") + event.text
            case _:
                pass
    calls = ((name, parse_arguments(arguments.get(i, ""))[0]) for i, name in names.items())
    return ReplyMeaning("".join(content), "".join(reasoning), tuple(calls))


def history_keys_of(conversation: Conversation, known: Sequence[bytes] = ()) -> tuple[bytes, ...]:
    """Return `history_key_after` each message; `known` are those of the first ones."""
    keys = list(known)
    for message in conversation.messages[len(keys) :]:
        before = keys[-1] if keys else b""
        keys.append(history_key_after(before, message, media_in(message, conversation)))
    return tuple(keys)


def history_key_after(key: bytes, message: Message, media: Sequence[MediaPart] = ()) -> bytes:
    """Return the digest of a conversation that goes on from one with this key with a message.

    Reasoning does not count: a client may leave it out later. The images and audio of the message
    do, whose markers in it are but numbers. The empty conversation is at b"".
    """
    if message["role"] == "assistant":
        said = meaning_of_message(message).bare_digest
    else:
        said = message["content"].encode("utf-8", "surrogatepass")
    head = b"%b%b\0" % (key, message["role"].encode())
    if media:
        digests = b"".join(part.digest for part in media)
        head = b"%b%b %d\0%b" % (key, message["role"].encode(), len(media), digests)
    return hashlib.blake2b(head + said, digest_size=DIGEST_BYTES).digest()


def _digest(value: Any) -> bytes:
    try:
        text = json.dumps(_canonical(value), sort_keys=True)
    except RecursionError:  # nested too deeply: like no other
        return os.urandom(DIGEST_BYTES)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _canonical(value: Any) -> Any:
    """Return a JSON value with whole numbers as integers, as JavaScript prints them."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return value

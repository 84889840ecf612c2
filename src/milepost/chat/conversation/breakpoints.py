"""Places that clients mark as ends of a prefix that they will send again.

    {"type": "text", "text": "…", "cache_control": {"type": "ephemeral"}}            Anthropic's
    {"type": "text", "text": "…", "prompt_cache_breakpoint": {"mode": "explicit"}}   OpenAI's

The last part of a message stands for the whole of it, and so does a mark on the message. Templates
see no marks: they are read before, and placed in the prompt after, the rendering. What they say of
lifetimes is not used: what is kept how long is decided by what it is worth.

Marks on tools need no place of their own: `system_end` is behind the tools, and always exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.chat.conversation.media_parts import part_ends

KEYS = ("cache_control", "prompt_cache_breakpoint")
MAX_BREAKPOINTS = 80  # of one request, the latest; as many as OpenAI looks at


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A mark of the client."""

    message_index: int
    num_chars: int = -1  # of the content, up to the mark; -1: the end of the message


def read_breakpoints(messages: list[dict[str, Any]]) -> tuple[Breakpoint, ...]:
    """Return the marks in the messages of a request, whose parts were checked, in their order."""
    found = [mark for i, message in enumerate(messages) for mark in _read_message(i, message)]
    return tuple(found[-MAX_BREAKPOINTS:])


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


def _read_message(index: int, message: Mapping[str, Any]) -> Iterator[Breakpoint]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    for part, end in zip(parts[:-1], part_ends(parts), strict=False):
        if _is_marked(part):
            yield Breakpoint(index, end)
    if _is_marked(message) or (parts and _is_marked(parts[-1])):
        yield Breakpoint(index)


def _is_marked(value: Mapping[str, Any]) -> bool:
    return any(value.get(key) not in (None, False) for key in KEYS)

"""Turns OpenAI-style messages and tools into a `Conversation` that chat templates can render.

Decides what a well-formed conversation is and says in one sentence what is wrong with others.
Knows no template: what single templates want changed is in `message_forms`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from milepost.chat.conversation.media_parts import (
    PART_KINDS,
    MediaCollector,
    MediaPart,
    choose_media_sentinel,
    is_media,
    part_ends,
)
from milepost.chat.conversation.sentinels import FIRST_SENTINEL, find_markers
from milepost.errors import InvalidRequest
from milepost.protocol.messages import SYSTEM_ROLES, TOOL_ROLES

# Templates read plain dicts, so messages stay dicts here, against the rule for records.
Message = dict[str, Any]

ROLES = (*SYSTEM_ROLES, "user", "assistant", *TOOL_ROLES)
# Parts that cannot be taken -> what could be sent instead.
FOREIGN_PARTS = {
    "image": "send images as 'image_url' parts",
    "audio": "send audio as 'input_audio' parts",
    "file": "files do not work here; send their text",
    "input_file": "files do not work here; send their text",
    "video_url": "videos do not work here; send some of their images",
    "input_video": "videos do not work here; send some of their images",
}
MAX_SHOWN_CHARS = 80  # of a bad value in an error message; arbitrary
BREAKPOINT_KEYS = ("cache_control", "prompt_cache_breakpoint")
MAX_BREAKPOINTS = 80  # of one request, the latest; as many as OpenAI looks at


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A place that the client marks as the end of a prefix that it will send again.

    Templates see no marks: they are read before, and placed in the prompt after, the rendering.
    """

    message_index: int
    num_chars: int = -1  # of the content, up to the mark; -1: the end of the message


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


def parse_conversation(
    messages: object, tools: object = None, documents: object = None
) -> Conversation:
    """Check the `messages`, `tools` and `documents` of a request.

    Text parts are joined by newlines, as llama-server does; images and audio become markers between
    them (`media_parts`). Null content becomes "". Tool-call arguments that are no JSON are kept as
    text: a client that sends back what a model wrote must not be locked out of its conversation by
    one bad call.

    Raises InvalidRequest with the path of the first bad value.
    """
    if not isinstance(messages, list):
        raise _invalid(f"messages must be a list of messages, not {_shown(messages)}")
    if not messages:
        raise _invalid("messages is empty; send at least one message, e.g. one with role 'user'")
    media = MediaCollector(chr(FIRST_SENTINEL))
    conversation = _parse(messages, tools, documents, media)
    if not media.parts:
        return conversation
    texts = (conversation.tools, conversation.documents, _texts_in(messages))
    sentinel = choose_media_sentinel(*texts)
    if sentinel != media.sentinel:
        media = MediaCollector(sentinel)
        conversation = _parse(messages, tools, documents, media)
    return replace(conversation, media=tuple(media.parts), sentinel=sentinel)


def _parse(
    messages: list[Any], tools: object, documents: object, media: MediaCollector
) -> Conversation:
    argument_texts: dict[tuple[int, int], str] = {}
    parsed: list[Message] = []
    for i, message in enumerate(messages):
        parsed.append(_parse_message(message, f"messages[{i}]", media))
        for j, call in enumerate(parsed[-1].get("tool_calls", ())):
            function = call["function"]
            function["arguments"], text = parse_arguments(function["arguments"])
            argument_texts[i, j] = text
    return Conversation(
        parsed,
        _parse_tools(tools),
        _parse_documents(documents),
        argument_texts,
        read_breakpoints(messages),
    )


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


def _texts_in(messages: list[Any]) -> list[Any]:
    """Return the messages of a request without what images and audio consist of."""
    without: list[Any] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            texts = [part for part in content if not is_media(part)]
            message = {**message, "content": texts}
        without.append(message)
    return without


def read_breakpoints(messages: list[dict[str, Any]]) -> tuple[Breakpoint, ...]:
    """Return the marks in the messages of a request, whose parts were checked, in their order.

        {"type": "text", "text": "…", "cache_control": {"type": "ephemeral"}}        Anthropic's
        {"type": "text", "text": "…", "prompt_cache_breakpoint": {"mode": "explicit"}}  OpenAI's

    The last part of a message stands for the whole of it, and so does a mark on the message. What
    marks say of lifetimes is not used: what is kept how long is decided by what it is worth. Marks
    on tools need no place of their own: `system_end` is after the tools, and always exact.
    """
    found = [mark for i, message in enumerate(messages) for mark in _read_marks(i, message)]
    return tuple(found[-MAX_BREAKPOINTS:])


def _read_marks(index: int, message: Mapping[str, Any]) -> Iterator[Breakpoint]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    for part, end in zip(parts[:-1], part_ends(parts), strict=False):
        if _is_marked(part):
            yield Breakpoint(index, end)
    if _is_marked(message) or (parts and _is_marked(parts[-1])):
        yield Breakpoint(index)


def _is_marked(value: Mapping[str, Any]) -> bool:
    return any(value.get(key) not in (None, False) for key in BREAKPOINT_KEYS)


def _parse_message(message: object, where: str, media: MediaCollector) -> Message:
    if not isinstance(message, dict):
        raise _invalid(f"{where} must be an object with role and content, not {_shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        what = f"is {_shown(role)}" if "role" in message else "is missing"
        raise _invalid(f"{where}.role {what}; use one of {', '.join(ROLES)}")
    parsed: Message = {"role": role, "content": _parse_content(message, where, media)}
    for key in ("reasoning_content", "name", "tool_call_id"):
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise _invalid(f"{where}.{key} must be a string or left out, not {_shown(value)}")
        parsed[key] = value
    if message.get("tool_calls"):
        parsed["tool_calls"] = _parse_tool_calls(message, where)
    return parsed


def _parse_content(message: dict[str, Any], where: str, media: MediaCollector) -> str:
    if "content" not in message:
        if message["role"] != "assistant":
            raise _invalid(f'{where}.content is missing; send a string, "" if there is no text')
        if not message.get("tool_calls") and not message.get("reasoning_content"):
            raise _invalid(f"{where} has neither content nor tool_calls; send one of them")
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(
            f"{where}.content must be a string or a list of parts, not {_shown(content)}"
        )
    texts = [_parse_part(part, f"{where}.content[{i}]", media) for i, part in enumerate(content)]
    text = ""
    for part_text, end in zip(texts, part_ends(content), strict=True):
        joint = "\n" if end > len(text) + len(part_text) else ""
        text = f"{text}{joint}{part_text}"
    return text


def _parse_part(part: object, where: str, media: MediaCollector) -> str:
    if not isinstance(part, dict):
        raise _invalid(f'{where} must be an object like {{"type": "text", "text": …}}')
    kind = part.get("type")
    if isinstance(kind, str) and kind in PART_KINDS:
        return media.add(part, where)
    if isinstance(kind, str) and kind in FOREIGN_PARTS:
        raise _invalid(f"{where} has type {_shown(kind)}; {FOREIGN_PARTS[kind]}")
    if kind != "text":
        what = f"is {_shown(kind)}" if "type" in part else "is missing"
        raise _invalid(f"{where}.type {what}; use 'text', 'image_url' or 'input_audio'")
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{where}.text must be a string, not {_shown(text)}")
    return text


def _parse_tool_calls(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        raise _invalid(f"{where}.tool_calls belongs into assistant messages; leave it out here")
    if not isinstance(calls, list):
        raise _invalid(f"{where}.tool_calls must be a list, not {_shown(calls)}")
    return [_parse_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _parse_tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise _invalid(f"{where} must be an object with a function object, not {_shown(call)}")
    if call.get("type", "function") != "function":
        raise _invalid(f"{where}.type is {_shown(call['type'])}; only 'function' works")
    name = call["function"].get("name")
    if not isinstance(name, str) or not name:
        raise _invalid(f"{where}.function.name must be a non-empty string, not {_shown(name)}")
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str | dict | None):
        raise _invalid(
            f"{where}.function.arguments must be JSON text or an object, not {_shown(arguments)}"
        )
    function = {"name": name, "arguments": arguments}
    parsed: dict[str, Any] = {"type": "function", "function": function}
    call_id = call.get("id")
    if call_id is not None:
        if not isinstance(call_id, str):
            raise _invalid(f"{where}.id must be a string or left out, not {_shown(call_id)}")
        parsed["id"] = call_id
    return parsed


def _parse_tools(tools: object) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise _invalid(f"tools must be a list of tools, not {_shown(tools)}", param="tools")
    return [_parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)] or None


def _parse_tool(tool: object, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise _invalid(
            f"{where} must be an object with a function object, not {_shown(tool)}", param="tools"
        )
    if tool.get("type") != "function":
        what = f"is {_shown(tool['type'])}" if "type" in tool else "is missing"
        raise _invalid(f"{where}.type {what}; only 'function' works", param="tools")
    function = tool["function"]
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid(f"{where}.function.name must be a non-empty string", param="tools")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise _invalid(f"{where}.function.description must be a string", param="tools")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise _invalid(
            f"{where}.function.parameters must be a JSON schema object, not {_shown(parameters)}",
            param="tools",
        )
    # As llama-server does, only what describes the tool: `strict` and the like are no text for
    # the model. Many templates read all three keys without asking whether they are there.
    described = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": described}


def _parse_documents(documents: object) -> list[Any] | None:
    if documents is None:
        return None
    if not isinstance(documents, list):
        raise _invalid(f"documents must be a list, not {_shown(documents)}", param="documents")
    return documents or None


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _invalid(message: str, *, param: str = "messages") -> InvalidRequest:
    return InvalidRequest(message, param=param)

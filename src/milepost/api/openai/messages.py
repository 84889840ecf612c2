"""Parses OpenAI's `messages`, `tools` and `documents` into a `Conversation`.

Decides what a well-formed request is, and says in one sentence what is wrong with others. What
becomes of well-formed messages is decided by `milepost.chat.conversation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from milepost.api.http_body import quote
from milepost.chat.conversation.conversation import (
    ROLES,
    ContentPart,
    Conversation,
    Message,
    make_conversation,
)
from milepost.chat.conversation.media_parts import MediaPart
from milepost.errors import InvalidRequest
from milepost.kinds import MediaKind

# Type of a part -> kind, and the key of what it holds.
MEDIA_PARTS: Mapping[str, tuple[MediaKind, str]] = {
    "image_url": ("image", "image_url"),
    "input_image": ("image", "image_url"),
    "input_audio": ("audio", "input_audio"),
    "audio_url": ("audio", "audio_url"),
}
# Parts that cannot be taken -> what could be sent instead.
FOREIGN_PARTS = {
    "image": "send images as 'image_url' parts",
    "audio": "send audio as 'input_audio' parts",
    "file": "files do not work here; send their text",
    "input_file": "files do not work here; send their text",
    "video_url": "videos do not work here; send some of their images",
    "input_video": "videos do not work here; send some of their images",
}
BREAKPOINT_KEYS = ("cache_control", "prompt_cache_breakpoint")


def parse_conversation(
    messages: object, tools: object = None, documents: object = None
) -> Conversation:
    """Check the `messages`, `tools` and `documents` of a request.

    Null content becomes "", fields that are not known are left out. Tool-call arguments may be any
    text, a call may have no name, and a reply may be empty: a client that sends back what a model
    wrote must not be locked out of its conversation by one bad reply.

        {"type": "text", "text": "…", "cache_control": {"type": "ephemeral"}}        Anthropic's
        {"type": "text", "text": "…", "prompt_cache_breakpoint": {"mode": "explicit"}}  OpenAI's

    mark breakpoints; the last part of a message stands for the whole of it, and so does a mark on
    the message. What marks say of lifetimes is not used: what is kept how long is decided by what
    it is worth. Marks on tools need no place of their own: `system_end` is after the tools, and
    always exact.

    Raises InvalidRequest with the path of the first bad value.
    """
    if not isinstance(messages, list):
        raise _invalid(f"messages must be a list of messages, not {quote(messages)}")
    if not messages:
        raise _invalid("messages is empty; send at least one message, e.g. one with role 'user'")
    parsed = [_parse_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return make_conversation(parsed, _parse_tools(tools), _parse_documents(documents))


def _parse_message(message: object, where: str) -> Message:
    if not isinstance(message, dict):
        raise _invalid(f"{where} must be an object with role and content, not {quote(message)}")
    role = message.get("role")
    if role not in ROLES:
        what = f"is {quote(role)}" if "role" in message else "is missing"
        raise _invalid(f"{where}.role {what}; use one of {', '.join(ROLES)}")
    parsed: Message = {"role": role, "content": _parse_content(message, where)}
    for key in ("reasoning_content", "name", "tool_call_id"):
        value = message.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise _invalid(f"{where}.{key} must be a string or left out, not {quote(value)}")
        parsed[key] = value
    if message.get("tool_calls"):
        parsed["tool_calls"] = _parse_tool_calls(message, where)
    return parsed


def _parse_content(message: dict[str, Any], where: str) -> str | list[ContentPart]:
    if "content" not in message and message["role"] != "assistant":
        raise _invalid(f'{where}.content is missing; send a string, "" if there is no text')
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise _invalid(f"{where}.content must be a string or a list of parts, not {quote(content)}")
    is_marked = _is_marked(message)
    if not content or isinstance(content, str):
        text = content or ""
        return [ContentPart(text, is_marked)] if is_marked else text
    parts = [_parse_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    if is_marked:
        parts[-1] = replace(parts[-1], is_breakpoint=True)
    return parts


def _parse_part(part: object, where: str) -> ContentPart:
    if not isinstance(part, dict):
        raise _invalid(f'{where} must be an object like {{"type": "text", "text": …}}')
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        return ContentPart(_parse_media(part, kind, where), _is_marked(part))
    if isinstance(kind, str) and kind in FOREIGN_PARTS:
        raise _invalid(f"{where} has type {quote(kind)}; {FOREIGN_PARTS[kind]}")
    if kind != "text":
        what = f"is {quote(kind)}" if "type" in part else "is missing"
        raise _invalid(f"{where}.type {what}; use 'text', 'image_url' or 'input_audio'")
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{where}.text must be a string, not {quote(text)}")
    return ContentPart(text, _is_marked(part))


def _parse_media(part: Mapping[str, Any], kind: str, where: str) -> MediaPart:
    media_kind, key = MEDIA_PARTS[kind]
    value, path = part.get(key), f"{where}.{key}"
    if isinstance(value, Mapping):  # {"url": …, "detail": …} or {"data": …, "format": …}
        names = ("data", "url") if key == "input_audio" else ("url",)
        name = next((name for name in names if value.get(name) is not None), names[0])
        value, path = value.get(name), f"{path}.{name}"
    if not isinstance(value, str):
        raise _invalid(f"{path} must be a URL or base64 text, not {quote(value)}")
    if not value:
        raise _invalid(f"{path} is empty; send a data URL, or leave the part out")
    return MediaPart(media_kind, where, value)


def _is_marked(value: Mapping[str, Any]) -> bool:
    return any(value.get(key) not in (None, False) for key in BREAKPOINT_KEYS)


def _parse_tool_calls(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        raise _invalid(f"{where}.tool_calls belongs into assistant messages; leave it out here")
    if not isinstance(calls, list):
        raise _invalid(f"{where}.tool_calls must be a list, not {quote(calls)}")
    return [_parse_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _parse_tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise _invalid(f"{where} must be an object with a function object, not {quote(call)}")
    if call.get("type", "function") != "function":
        raise _invalid(f"{where}.type is {quote(call['type'])}; only 'function' works")
    name = call["function"].get("name")
    if not isinstance(name, str | None):
        raise _invalid(f"{where}.function.name must be a string, not {quote(name)}")
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str | dict | None):
        raise _invalid(
            f"{where}.function.arguments must be JSON text or an object, not {quote(arguments)}"
        )
    function = {"name": name or "", "arguments": arguments}
    parsed: dict[str, Any] = {"type": "function", "function": function}
    call_id = call.get("id")
    if call_id is not None:
        if not isinstance(call_id, str):
            raise _invalid(f"{where}.id must be a string or left out, not {quote(call_id)}")
        parsed["id"] = call_id
    return parsed


def _parse_tools(tools: object) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise _invalid(f"tools must be a list of tools, not {quote(tools)}", param="tools")
    return [_parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)] or None


def _parse_tool(tool: object, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise _invalid(
            f"{where} must be an object with a function object, not {quote(tool)}", param="tools"
        )
    if tool.get("type") != "function":
        what = f"is {quote(tool['type'])}" if "type" in tool else "is missing"
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
            f"{where}.function.parameters must be a JSON schema object, not {quote(parameters)}",
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
        raise _invalid(f"documents must be a list, not {quote(documents)}", param="documents")
    return documents or None


def _invalid(message: str, *, param: str = "messages") -> InvalidRequest:
    return InvalidRequest(message, param=param)

"""What a chat template is given for a conversation: messages that meet its own needs.

Pure. `TemplateTraits` says what a template needs (found by `trait_probe`).
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass, replace
from typing import Any, Literal

from milepost.chat.conversation.conversation import Conversation, Message

ArgumentForm = Literal["object", "text"]
# Under which key of a message a template reads reasoning, or as a part of its content.
ReasoningKey = Literal["reasoning_content", "reasoning", "thinking", "thinking_part"]

SHORT_ID_CHARS = 9  # what Mistral's templates demand of the ids of tool calls
ID_ALPHABET = string.ascii_letters + string.digits
NAMED_TYPES = ("string", "number", "integer", "boolean", "array", "object")


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template wants to be different from the usual."""

    arguments: ArgumentForm | None = "object"  # None: not known, to be tried
    takes_parts: bool = False  # content as a list of typed parts, not as a string
    takes_empty_tools: bool = False  # no tools are an empty list, not none
    takes_short_ids: bool = False  # ids of tool calls are 9 letters and digits
    knows_developer: bool = False  # has a role `developer` besides `system`
    takes_null_content: bool = False  # tool calls are shown only where content is null
    reasoning_key: ReasoningKey = "reasoning_content"
    runs_parts_together: bool = False  # typed parts of text are written without anything between
    merges_thinking: bool = False  # content beside calls is lost unless it is a part of `thinking`


def adapt_messages(
    conversation: Conversation, traits: TemplateTraits, arguments: ArgumentForm
) -> list[Message]:
    """Return the messages as a template with these traits wants them, in their order.

    The list and the messages are new, so that a template may change them; strings, and tool
    calls where nothing had to be changed, are shared with the conversation.
    """
    adapted = [message.copy() for message in conversation.messages]
    for i, message in enumerate(adapted):
        role = message["role"]
        if role == "developer" and not traits.knows_developer:
            message["role"] = "system"
        elif role == "function":  # the older name, which templates do not know
            message["role"] = "tool"
        if arguments == "text" and "tool_calls" in message:
            message["tool_calls"] = _with_text_arguments(conversation, i)
        if traits.takes_short_ids:
            _shorten_ids(message)
        if traits.reasoning_key != "reasoning_content" and "reasoning_content" in message:
            _move_reasoning(message, traits)
        if traits.takes_null_content and "tool_calls" in message and not message.get("content"):
            message["content"] = None
        elif traits.takes_parts and isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return adapted


def wrap_arguments(conversation: Conversation) -> Conversation | None:
    """Return the conversation with all arguments of tool calls as objects, None if they are.

    Many templates go through the items of an object. What a model wrote instead, say JSON that
    breaks off, is given to them as the one argument `arguments`.
    """
    wrapped: dict[int, Message] = {}
    for i, message in enumerate(conversation.messages):
        calls = message.get("tool_calls", ())
        if all(isinstance(call["function"]["arguments"], dict) for call in calls):
            continue
        wrapped[i] = {**message, "tool_calls": [_wrap_call(call) for call in calls]}
    if not wrapped:
        return None
    messages = [wrapped.get(i, message) for i, message in enumerate(conversation.messages)]
    return replace(conversation, messages=messages)


def _wrap_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return call
    arguments = {"arguments": function["arguments"]}
    return {**call, "function": {**function, "arguments": arguments}}


def _with_text_arguments(conversation: Conversation, index: int) -> list[dict[str, Any]]:
    calls = []
    for j, call in enumerate(conversation.messages[index]["tool_calls"]):
        text = conversation.argument_texts[index, j]
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return calls


def _shorten_ids(message: Message) -> None:
    if "tool_calls" in message:
        calls = message["tool_calls"]
        message["tool_calls"] = [{**call, "id": short_id(call.get("id", ""))} for call in calls]
    elif "tool_call_id" in message:
        message["tool_call_id"] = short_id(message["tool_call_id"])


def short_id(call_id: str) -> str:
    """Return the id itself if it is short, otherwise one that is always the same for it."""
    if len(call_id) == SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "replace")).digest()
    return "".join(ID_ALPHABET[byte % len(ID_ALPHABET)] for byte in digest[:SHORT_ID_CHARS])


def _move_reasoning(message: Message, traits: TemplateTraits) -> None:
    reasoning, key = message["reasoning_content"], traits.reasoning_key
    if key == "thinking_part":
        text = {"type": "text", "text": message.get("content", "")}
        message["content"] = [{"type": "thinking", "thinking": reasoning}, text]
        return
    message[key] = reasoning
    if traits.merges_thinking and "tool_calls" in message:
        # gpt-oss shows either as analysis and refuses both: put one after the other.
        content = message.pop("content")
        if content:
            message["thinking"] += "\n" + content


def complete_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools with all that a schema may leave out, and types that any template can name.

    Some templates write signatures, and go through `properties` or add up descriptions.
    """
    return [
        {**tool, "function": {**tool["function"], **_complete_parameters(tool["function"])}}
        for tool in tools
    ]


def _complete_parameters(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    completed = _complete_schema({**schema, "type": "object"})
    return {"description": function.get("description") or "", "parameters": completed}


def _complete_schema(schema: object) -> dict[str, Any]:
    given = schema if isinstance(schema, dict) else {}
    kind = _one_type(given)
    completed = {**given, "type": kind, "description": given.get("description") or ""}
    if kind == "object":
        properties = given.get("properties")
        items = properties.items() if isinstance(properties, dict) else ()
        completed["properties"] = {name: _complete_schema(each) for name, each in items}
        completed["required"] = given.get("required") or []
        completed["additionalProperties"] = _complete_leaf(given.get("additionalProperties"))
    elif kind == "array":
        completed["items"] = _complete_schema(given.get("items"))
    return completed


def _complete_leaf(schema: object) -> dict[str, Any]:
    return _complete_schema(schema) if isinstance(schema, dict) else {"type": "string"}


def _one_type(schema: dict[str, Any]) -> str:
    """Return the type of a schema, "string" where it has none or several."""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        kinds = [kinds]
    known = [kind for kind in kinds if kind in NAMED_TYPES]
    return known[0] if known else "string"

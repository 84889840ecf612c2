"""Finds out what a chat template needs by rendering small conversations with it.

Run once when a template is loaded. A rendering that fails is an answer too, so nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from milepost.chat.conversation.conversation import Message
from milepost.chat.templates.message_forms import ArgumentForm, ReasoningKey, TemplateTraits

# Renders messages and tools, None when the template refuses them.
TryRender = Callable[[list[Message], list[dict[str, Any]] | None], str | None]

MARKER = "milepost-probe"
LONG_ID = "call_milepost_probe_1"
SHORT_ID = "milepost1"
ARGUMENT_NAME = "milepost_key"
ARGUMENTS_TEXT = f'{{"{ARGUMENT_NAME}": "{MARKER}"}}'
PYTHON_ARGUMENT = f"'{ARGUMENT_NAME}':"  # an object that was printed instead of encoded
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {ARGUMENT_NAME: {"type": "string", "description": "A text."}},
                "required": [ARGUMENT_NAME],
            },
        },
    }
]


def probe_traits(source: str, try_render: TryRender) -> TemplateTraits:
    """Return the traits of a template with this source."""
    takes_parts, takes_empty_tools = _probe_plain_message(try_render)
    takes_short_ids, takes_null_content, arguments = _probe_tool_calls(try_render, takes_parts)
    return TemplateTraits(
        arguments=arguments,
        takes_parts=takes_parts,
        takes_empty_tools=takes_empty_tools,
        takes_short_ids=takes_short_ids,
        knows_developer=re.search(r"""['"]developer['"]""", source) is not None,
        takes_null_content=takes_null_content,
        reasoning_key=_find_reasoning_key(source, try_render),
    )


def find_image_text(try_render: TryRender) -> str:
    """Return what a template writes for an image between two texts, "" if that is nothing."""
    texts = [{"type": "text", "text": MARKER + end} for end in "ab"]
    shown = _between_texts([texts[0], {"type": "image"}, texts[1]], try_render)
    # Lists that are printed are no text for an image; some write the same between any two parts.
    is_printed = re.search(r"""['"]type['"]:""", shown) is not None
    return "" if is_printed or shown == _between_texts(texts, try_render) else shown


def _between_texts(parts: list[dict[str, Any]], try_render: TryRender) -> str:
    rendered = try_render([{"role": "user", "content": parts}], None) or ""
    start, end = rendered.find(f"{MARKER}a"), rendered.find(f"{MARKER}b")
    return rendered[start + len(MARKER) + 1 : end] if 0 <= start < end else ""


def _find_reasoning_key(source: str, try_render: TryRender) -> ReasoningKey:
    """Return where a template looks for reasoning: the key that it names."""
    if "reasoning_content" in source:
        return "reasoning_content"
    if re.search(r"""\.thinking\b|['"]thinking['"]""", source):
        parts = [{"type": "thinking", "thinking": MARKER}, {"type": "text", "text": "answer"}]
        messages: list[Message] = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": parts},
            {"role": "user", "content": "question"},
        ]
        shown = try_render(messages, None) or ""
        is_printed = re.search(r"""['"]thinking['"]:""", shown) is not None  # the list as it is
        return "thinking_part" if MARKER in shown and not is_printed else "thinking"
    if re.search(r"""\.reasoning\b|['"]reasoning['"]""", source):
        return "reasoning"
    return "reasoning_content"


def _probe_plain_message(try_render: TryRender) -> tuple[bool, bool]:
    """Return whether content has to be a list of parts, and `tools` a list even if empty."""
    for takes_empty_tools in (False, True):
        for takes_parts in (False, True):
            messages = [{"role": "user", "content": _content(MARKER, takes_parts)}]
            rendered = try_render(messages, [] if takes_empty_tools else None)
            if rendered is not None and MARKER in rendered:
                return takes_parts, takes_empty_tools
    return False, False


def _probe_tool_calls(
    try_render: TryRender, takes_parts: bool
) -> tuple[bool, bool, ArgumentForm | None]:
    """Return whether ids must be short, whether content must be null, and the form of arguments."""
    found: tuple[bool, bool, ArgumentForm | None] = (False, False, None)
    contents = [_content("", takes_parts)] if takes_parts else ["", None]
    for content in contents:
        for call_id in (LONG_ID, SHORT_ID):
            with_object = try_render(
                _tool_conversation({ARGUMENT_NAME: MARKER}, call_id, content), TOOLS
            )
            with_text = try_render(_tool_conversation(ARGUMENTS_TEXT, call_id, content), TOOLS)
            if with_object is None and with_text is None:
                continue
            form = _choose_form(with_object, with_text)
            if MARKER in (with_object or "") or MARKER in (with_text or ""):
                return call_id == SHORT_ID, content is None, form
            if found[2] is None:  # nothing is shown, so all are the same
                found = (call_id == SHORT_ID, False, form)
            break
    return found


def _choose_form(with_object: str | None, with_text: str | None) -> ArgumentForm:
    if with_object is None:
        return "text"
    if PYTHON_ARGUMENT in with_object and with_text is not None and ARGUMENTS_TEXT in with_text:
        return "text"
    return "object"


def _tool_conversation(arguments: Any, call_id: str, content: Any) -> list[Message]:
    """Return a conversation with a tool call in a message that has this (empty) content."""
    function = {"name": "probe", "arguments": arguments}
    call = {"type": "function", "function": function, "id": call_id}
    takes_parts = isinstance(content, list)
    return [
        {"role": "user", "content": _content("question", takes_parts)},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": _content("result", takes_parts), "tool_call_id": call_id},
        {"role": "assistant", "content": _content("answer", takes_parts)},
        {"role": "user", "content": _content("question", takes_parts)},
    ]


def _content(text: str, takes_parts: bool) -> Any:
    return [{"type": "text", "text": text}] if takes_parts else text

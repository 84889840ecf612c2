"""Finds out what a chat template needs by rendering small conversations with it.

Run once when a template is loaded. A rendering that fails is an answer too, so nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from milepost.chat.conversation import Message
from milepost.chat.template_messages import ArgumentForm, TemplateTraits

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
    takes_short_ids, arguments = _probe_tool_calls(try_render, takes_parts)
    return TemplateTraits(
        arguments=arguments,
        takes_parts=takes_parts,
        takes_empty_tools=takes_empty_tools,
        takes_short_ids=takes_short_ids,
        knows_developer=re.search(r"""['"]developer['"]""", source) is not None,
        takes_thinking="reasoning_content" not in source
        and re.search(r"""\.thinking\b|['"]thinking['"]""", source) is not None,
    )


def _probe_plain_message(try_render: TryRender) -> tuple[bool, bool]:
    """Return whether content has to be a list of parts, and `tools` a list even if empty."""
    for takes_empty_tools in (False, True):
        for takes_parts in (False, True):
            messages = [{"role": "user", "content": _content(MARKER, takes_parts)}]
            rendered = try_render(messages, [] if takes_empty_tools else None)
            if rendered is not None and MARKER in rendered:
                return takes_parts, takes_empty_tools
    return False, False


def _probe_tool_calls(try_render: TryRender, takes_parts: bool) -> tuple[bool, ArgumentForm | None]:
    """Return whether ids have to be short, and in which form arguments are wanted."""
    for call_id in (LONG_ID, SHORT_ID):
        with_object = try_render(
            _tool_conversation({ARGUMENT_NAME: MARKER}, call_id, takes_parts), TOOLS
        )
        with_text = try_render(_tool_conversation(ARGUMENTS_TEXT, call_id, takes_parts), TOOLS)
        if with_object is not None or with_text is not None:
            return call_id == SHORT_ID, _choose_form(with_object, with_text)
    return False, None


def _choose_form(with_object: str | None, with_text: str | None) -> ArgumentForm:
    if with_object is None:
        return "text"
    if PYTHON_ARGUMENT in with_object and with_text is not None and ARGUMENTS_TEXT in with_text:
        return "text"
    return "object"


def _tool_conversation(arguments: Any, call_id: str, takes_parts: bool) -> list[Message]:
    function = {"name": "probe", "arguments": arguments}
    call = {"type": "function", "function": function, "id": call_id}
    return [
        {"role": "user", "content": _content("question", takes_parts)},
        {"role": "assistant", "content": _content("", takes_parts), "tool_calls": [call]},
        {"role": "tool", "content": _content("result", takes_parts), "tool_call_id": call_id},
        {"role": "assistant", "content": _content("answer", takes_parts)},
        {"role": "user", "content": _content("question", takes_parts)},
    ]


def _content(text: str, takes_parts: bool) -> Any:
    return [{"type": "text", "text": text}] if takes_parts else text

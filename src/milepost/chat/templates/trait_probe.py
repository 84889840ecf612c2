"""Finds out in which form a chat template wants messages, by rendering small conversations.

Run when a template is loaded, as all other renderings depend on it: here the template is given
messages exactly as they are written. A rendering that fails is an answer too, so nothing raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.formats.probe_texts import (
    ANSWER,
    IDS,
    KEYS,
    LATER_USER,
    LONG_ID,
    REASONING,
    SYSTEM,
    TOOLS,
    USER,
    VALUES,
    Probe,
    between,
    call,
    calling,
    result,
    user,
)
from milepost.chat.templates.message_forms import ArgumentForm, ReasoningKey, TemplateTraits

ARGUMENTS = dict(zip(KEYS[0], VALUES[0], strict=True))
ARGUMENTS_TEXT = json.dumps(ARGUMENTS)
PYTHON_ARGUMENT = f"'{KEYS[0][0]}':"  # an object that was printed instead of encoded


def probe_traits(probe: Probe) -> TemplateTraits:
    """Return the traits of a template; the probe renders messages as they are."""
    reasoning_key = _find_reasoning_key(probe)
    takes_parts, takes_empty_tools = _probe_plain_message(probe)
    takes_short_ids, takes_null_content, arguments = _probe_tool_calls(probe, takes_parts)
    return TemplateTraits(
        arguments=arguments,
        takes_parts=takes_parts,
        takes_empty_tools=takes_empty_tools,
        takes_short_ids=takes_short_ids,
        knows_developer=_knows_developer(probe, takes_parts),
        takes_null_content=takes_null_content,
        runs_parts_together=_between_texts(probe, [*_parts(USER), *_parts(LATER_USER)]) == "",
        reasoning_key=reasoning_key,
        merges_thinking=reasoning_key == "thinking" and _merges_thinking(probe),
    )


def _knows_developer(probe: Probe, takes_parts: bool) -> bool:
    """Say whether a template names the role and shows its message."""
    if re.search(r"""['"]developer['"]""", probe.source) is None:
        return False  # it would write the name of any role
    content = _parts(SYSTEM) if takes_parts else SYSTEM
    first = {"role": "user", "content": _parts(USER) if takes_parts else USER}
    return SYSTEM in (_ask(probe, [{"role": "developer", "content": content}, first]) or "")


def _merges_thinking(probe: Probe) -> bool:
    """Say whether a reply with calls loses its content where it has reasoning too."""
    reply = calling(call(0), text=ANSWER, thinking=REASONING)
    return ANSWER not in (_ask(probe, [user(), reply, result()], TOOLS) or "")


def find_image_text(probe: Probe) -> str:
    """Return what a template writes for an image between two texts, "" if that is nothing."""
    first, last = _parts(USER), _parts(LATER_USER)
    shown = _between_texts(probe, [*first, {"type": "image"}, *last]) or ""
    # Lists that are printed are no text for an image; some write the same between any two parts.
    is_printed = re.search(r"""['"]type['"]:""", shown) is not None
    return "" if is_printed or shown == _between_texts(probe, [*first, *last]) else shown


def _between_texts(probe: Probe, parts: list[dict[str, Any]]) -> str | None:
    return between(_ask(probe, [{"role": "user", "content": parts}]), USER, LATER_USER)


def _find_reasoning_key(probe: Probe) -> ReasoningKey:
    """Return where a template looks for reasoning: the key that it names."""
    source = probe.source
    if "reasoning_content" in source:
        return "reasoning_content"
    if re.search(r"""\.thinking\b|['"]thinking['"]""", source):
        parts = [{"type": "thinking", "thinking": REASONING}, *_parts(ANSWER)]
        reply = {"role": "assistant", "content": parts}
        shown = _ask(probe, [user(), reply, user(LATER_USER)]) or ""
        is_printed = re.search(r"""['"]thinking['"]:""", shown) is not None  # the list as it is
        return "thinking_part" if REASONING in shown and not is_printed else "thinking"
    if re.search(r"""\.reasoning\b|['"]reasoning['"]""", source):
        return "reasoning"
    return "reasoning_content"


def _probe_plain_message(probe: Probe) -> tuple[bool, bool]:
    """Return whether content has to be a list of parts, and `tools` a list even if empty."""
    for takes_empty_tools in (False, True):
        for takes_parts in (False, True):
            messages = [{"role": "user", "content": _parts(USER) if takes_parts else USER}]
            rendered = _ask(probe, messages, [] if takes_empty_tools else None)
            if rendered is not None and USER in rendered:
                return takes_parts, takes_empty_tools
    return False, False


def _probe_tool_calls(probe: Probe, takes_parts: bool) -> tuple[bool, bool, ArgumentForm | None]:
    """Return whether ids must be short, whether content must be null, and the form of arguments."""
    found: tuple[bool, bool, ArgumentForm | None] = (False, False, None)
    contents = [_parts("")] if takes_parts else ["", None]
    for content in contents:
        for call_id in (LONG_ID, IDS[0]):
            with_object = _ask(probe, _tool_conversation(ARGUMENTS, call_id, content), TOOLS)
            with_text = _ask(probe, _tool_conversation(ARGUMENTS_TEXT, call_id, content), TOOLS)
            if with_object is None and with_text is None:
                continue
            form = _choose_form(with_object, with_text)
            if VALUES[0][0] in (with_object or "") or VALUES[0][0] in (with_text or ""):
                return call_id != LONG_ID, content is None, form
            if found[2] is None:  # nothing is shown, so all are the same
                found = (call_id != LONG_ID, False, form)
            break
    return found


def _choose_form(with_object: str | None, with_text: str | None) -> ArgumentForm:
    if with_object is None:
        return "text"
    if PYTHON_ARGUMENT in with_object and with_text is not None and ARGUMENTS_TEXT in with_text:
        return "text"
    return "object"


def _tool_conversation(
    arguments: dict[str, str] | str, call_id: str, content: Any
) -> list[Message]:
    """Return a conversation with a tool call in a message that has this (empty) content."""
    talk = [
        user(),
        calling(call(0, arguments, call_id)),
        {**result(), "tool_call_id": call_id},
        {"role": "assistant", "content": ANSWER},
        user(LATER_USER),
    ]
    if isinstance(content, list):
        talk = [{**message, "content": _parts(message["content"])} for message in talk]
    talk[1]["content"] = content
    return talk


def _parts(text: str) -> list[dict[str, Any]]:
    """Return a text as content in typed parts."""
    return [{"type": "text", "text": text}]


def _ask(
    probe: Probe, messages: list[Message], tools: list[dict[str, Any]] | None = None
) -> str | None:
    return probe.ask(Conversation(messages, tools), add_generation_prompt=True)

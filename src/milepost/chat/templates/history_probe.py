"""Finds out how a template treats replies once they are history, by rendering short conversations.

Two facts decide where the next request will stop agreeing with this one: whether a reply is
written as history just behind the generation prompt that it was sampled after, and whether its
reasoning goes when the user speaks again. A third one, what ends a reply, tells where its tokens
end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from milepost.chat.conversation.conversation import Conversation, make_conversation
from milepost.chat.conversation.message_spans import common_prefix
from milepost.chat.templates.trait_probe import ARGUMENTS_TEXT, SHORT_ID, TOOLS

# Renders a conversation with or without generation prompt, None when the template refuses it.
Render = Callable[[Conversation, bool], str | None]

REASONING = "milepost-reasoning"
USER = {"role": "user", "content": "question"}
NEXT_USER = {"role": "user", "content": "another"}
CALL = {
    "id": SHORT_ID,
    "type": "function",
    "function": {"name": "probe", "arguments": ARGUMENTS_TEXT},
}
CALLING = {"role": "assistant", "content": "calling", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "result", "tool_call_id": SHORT_ID}
ANSWER = {"role": "assistant", "content": "answer"}
REASONED = {**ANSWER, "reasoning_content": REASONING}
STARTS: dict[str, list[dict[str, Any]]] = {"user": [USER], "tool": [USER, CALLING, RESULT]}


def differs_in_history(
    render: Render, last_role: str, *, has_reasoning: bool, has_tools: bool
) -> bool:
    """Say whether some reply to such a message is written differently behind the prompt's end.

    True means that a later request may agree with this prompt up to its generation prompt, but
    not up to its last token. With `has_reasoning` the client is known to send reasoning back;
    without, it may do either.
    """
    start = STARTS.get(last_role, STARTS["user"])
    prompt = render(_conversation(start, has_tools), True)
    without = render(_conversation(start, has_tools), False)
    if prompt is None or without is None:
        return False
    end = common_prefix(prompt, without)
    for reply in [REASONED] if has_reasoning else [REASONED, ANSWER]:
        for later_messages in ([reply], [reply, NEXT_USER]):
            later = render(_conversation([*start, *later_messages], has_tools), False)
            if later is not None and end <= _num_kept(prompt, later) < len(prompt):
                return True
    return False


def drops_reasoning(render: Render, *, has_tools: bool) -> bool:
    """Say whether reasoning that was shown is left out once another user message follows."""
    shown = render(_conversation([USER, REASONED], has_tools), False)
    later = render(_conversation([USER, REASONED, NEXT_USER], has_tools), False)
    return shown is not None and later is not None and REASONING in shown and REASONING not in later


def find_reply_trailer(render: Render, *, has_tools: bool) -> str | None:
    """Return what stands between the text of a reply and the end of its message; None: unknown."""
    shown = render(_conversation([USER, ANSWER], has_tools), False)
    later = render(_conversation([USER, ANSWER, NEXT_USER], has_tools), False)
    if shown is None or later is None:
        return None
    behind = [text.partition(ANSWER["content"])[2] for text in (shown, later)]
    return behind[0][: common_prefix(behind[0], behind[1])] if behind[1] else None


def _num_kept(prompt: str, later: str) -> int:
    """Return how many characters will be the same tokens: white space may be merged."""
    end = common_prefix(prompt, later)
    if end == len(prompt) and prompt[-1:].isspace() and later[end : end + 1].isspace():
        return len(prompt.rstrip())
    return end


def _conversation(messages: list[dict[str, Any]], has_tools: bool) -> Conversation:
    return make_conversation(messages, TOOLS if has_tools else None)

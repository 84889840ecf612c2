"""Closed loop: later requests of a session carry the server's own replies, not the recorded ones.

What an agent did after a recorded reply is recorded too. So recorded tool calls are kept where the
results that follow answer them; the text and the reasoning beside them are the server's.
"""

from __future__ import annotations

import json

from milepost.traces.trace import Message, TraceRequest


class ReplyBook:
    """The server's replies, by session and by the recorded reply that they stand for."""

    def __init__(self) -> None:
        self._replies: dict[tuple[str, str], tuple[Message, Message]] = {}

    def note(self, request: TraceRequest, reply: Message) -> None:
        """Remember what the server replied to a request."""
        self._replies[request.session, _key_of(request.reply)] = (request.reply, reply)

    def messages_of(self, request: TraceRequest) -> list[Message]:
        """Return the messages of a request with the server's replies in them."""
        return [self._substitute(request.session, message) for message in request.messages]

    def _substitute(self, session: str, message: Message) -> Message:
        if message.get("role") != "assistant":
            return message
        recorded, reply = self._replies.get((session, _key_of(message)), (message, message))
        merged = dict(reply)
        merged.pop("tool_calls", None)
        if calls := message.get("tool_calls"):
            merged["tool_calls"] = calls
        if "reasoning_content" in recorded and "reasoning_content" not in message:
            merged.pop("reasoning_content", None)  # the agent strips old reasoning
        return merged


def _key_of(reply: Message) -> str:
    """Return what identifies a recorded reply, with its reasoning or without."""
    return json.dumps([reply.get("content"), reply.get("tool_calls")], sort_keys=True)

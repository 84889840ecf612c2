"""Puts reasoning back into replies whose client has left it out (`--restore-reasoning`)."""

from __future__ import annotations

from dataclasses import replace

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.reply_memory.reply_meaning import meaning_of_message, places_in
from milepost.chat.reply_memory.reply_store import ReplyStore


def restore_reasoning(conversation: Conversation, store: ReplyStore) -> Conversation:
    """Return the conversation with the reasoning of replies that were sampled in it.

    Only where a reply with the same content and calls was sampled at that very place, and all such
    replies had the same reasoning. Whether it is shown is up to the template.
    """
    messages: list[Message] = []
    places = (b"", *places_in(conversation))  # before each message
    for message, place in zip(conversation.messages, places, strict=False):
        reasoning = ""
        if message["role"] == "assistant" and not message.get("reasoning_content", "").strip():
            reasoning = store.find_reasoning(meaning_of_message(message).bare_digest, place)
        messages.append({**message, "reasoning_content": reasoning} if reasoning else message)
    return replace(conversation, messages=messages)

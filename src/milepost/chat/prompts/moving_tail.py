"""Recognises what an agent moves along at the end of its conversation.

    turn 1   user: fix the test ⟨reminder⟩
    turn 2   user: fix the test               …    user: now the other one ⟨reminder⟩

A turn parts from the one before where the moved text began. That is inside a message, where nothing
else has a state; but it is seen to have moved, and the next turn will part where it stands now. So
no form of reminder has to be known.
"""

from __future__ import annotations

from milepost.chat.conversation.conversation import Conversation

OPENING_CHARS = 16  # by which it is recognised, for the rest may change; arbitrary
ROLES = ("user", "tool", "function")


def find_moving_tail(conversation: Conversation, known: Conversation, num_shared: int) -> int:
    """Return how much of the last message stands before text that has moved there; 0: none has.

    `known` is an earlier turn, which begins with the same `num_shared` messages.
    """
    last = conversation.messages[-1]
    if not num_shared < min(len(conversation.messages) - 1, len(known.messages)):
        return 0
    before, after = known.messages[num_shared], conversation.messages[num_shared]
    if last["role"] not in ROLES or before["role"] != after["role"]:
        return 0
    if not after["content"] or not before["content"].startswith(after["content"]):
        return 0  # one that is empty now was blanked
    opening = before["content"][len(after["content"]) :].lstrip()[:OPENING_CHARS]
    pos = last["content"].rfind(opening) if len(opening) == OPENING_CHARS else -1
    return len(last["content"][: max(pos, 0)].rstrip())

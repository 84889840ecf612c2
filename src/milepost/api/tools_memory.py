"""Remembers with which tools each system prompt was last seen.

The engine, which knows tokens only, cannot tell a change of the tools from one of the system
prompt that they stand in.
"""

from __future__ import annotations

import hashlib
import json

from milepost.chat.conversation.conversation import Conversation
from milepost.lru import LruCache
from milepost.protocol.messages import SYSTEM_ROLES

MAX_HEADS = 256  # arbitrary; some 100 bytes each


class ToolsMemory:
    """Filled by the threads that prepare requests."""

    def __init__(self) -> None:
        # Digest of the system messages -> of the tools.
        self._seen: LruCache[bytes, bytes] = LruCache(MAX_HEADS)

    def is_new(self, conversation: Conversation) -> bool:
        """Return whether the system messages were last seen with other tools, and note these."""
        heads = [each for each in conversation.messages if each["role"] in SYSTEM_ROLES]
        head, tools = _digest(heads), _digest(conversation.tools)
        last = self._seen.get(head)
        self._seen.put(head, tools)
        return last is not None and last != tools


def _digest(value: object) -> bytes:
    text = json.dumps(value, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

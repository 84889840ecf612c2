"""One long conversation of a coding agent: turns of a user, tool calls and their results.

Any number of messages of about the same size each; the same name and sizes give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.workloads.material import Material
from milepost.traces.trace import Message

STEPS_PER_TURN = 4  # tool calls between two messages of the user
CHARS_PER_SENTENCE = 70  # of the material, about
CHARS_PER_TOKEN = 4.2  # the same, with SmolLM2's vocabulary
TOKENS_PER_MESSAGE = 20  # of the template and of tool calls


def make_conversation(name: str, num_messages: int, num_tokens: int) -> list[Message]:
    """Return messages of about so many tokens together, the last one not a reply."""
    material = Material(name, "python", seed=1)
    num_chars = CHARS_PER_TOKEN * (num_tokens / num_messages - TOKENS_PER_MESSAGE)
    num_sentences = max(int(num_chars / CHARS_PER_SENTENCE), 1)
    system: Message = {"role": "system", "content": material.prose(4 * num_sentences)}
    messages = [system, *islice(_turns(material, num_sentences), num_messages - 1)]
    while messages[-1]["role"] == "assistant":
        messages.pop()
    return messages


def make_body(messages: list[Message], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat request with greedy sampling that always goes to its limit."""
    return {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def _turns(material: Material, num_sentences: int) -> Iterator[Message]:
    number = 0
    while True:
        yield {"role": "user", "content": material.prose(num_sentences)}
        for _ in range(STEPS_PER_TURN):
            number += 1
            yield _call(material, f"call_{number:04}")
            content = material.prose(num_sentences + num_sentences // 2)
            yield {"role": "tool", "tool_call_id": f"call_{number:04}", "content": content}
        yield {"role": "assistant", "content": material.prose(num_sentences)}


def _call(material: Material, call_id: str) -> Message:
    arguments = json.dumps({"path": material.choose_place().path})
    function = {"name": "read", "arguments": arguments}
    return {
        "role": "assistant",
        "content": material.prose(1),
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }

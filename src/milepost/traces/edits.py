"""Edits of a trace: how the messages of a request differ from those of its thread.

`at` and `before` are indices into the messages as they are at that moment; `at` may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]
Edit = dict[str, Any]
Threads = Mapping[str, Sequence[Message]]


class EditFailed(Exception):
    """An edit does not fit the messages; the message says how."""


def apply_edit(messages: list[Message], edit: Edit, threads: Threads) -> None:
    """Change the list in place; messages themselves are copied before they change.

    Raises EditFailed, and KeyError, IndexError or TypeError where a part of the edit is missing.
    """
    operation = edit["op"]
    if operation not in OPERATIONS:
        raise EditFailed(f"there is no edit named {operation!r}")
    OPERATIONS[operation](messages, edit, threads)


def splice_in(at: int, items: Sequence[Message]) -> Edit:
    """Return the edit that puts messages, or slices of threads, in at an index."""
    return {"op": "splice", "at": at, "del": 0, "ins": list(items)}


def slice_of(thread: str, start: int, end: int) -> Message:
    """Return the item of a splice that stands for a slice of a thread."""
    return {"ref": thread, "from": start, "to": end}


def _splice(messages: list[Message], edit: Edit, threads: Threads) -> None:
    new: list[Message] = []
    for item in edit["ins"]:
        if "ref" in item:
            new += threads[item["ref"]][item["from"] : item["to"]]
        else:
            new.append(item)
    start = edit["at"] if edit["at"] >= 0 else len(messages) + edit["at"]
    messages[start : start + edit["del"]] = new


def _append(messages: list[Message], edit: Edit, _: Threads) -> None:
    message = messages[edit["at"]]
    messages[edit["at"]] = {**message, "content": _text_of(message) + edit["text"]}


def _replace(messages: list[Message], edit: Edit, _: Threads) -> None:
    message = messages[edit["at"]]
    content = _text_of(message)
    if edit["old"] not in content:
        raise EditFailed(f"the text to replace is not there: {edit['old']!r}")
    messages[edit["at"]] = {**message, "content": content.replace(edit["old"], edit["new"], 1)}


def _drop_reasoning(messages: list[Message], edit: Edit, _: Threads) -> None:
    for index, message in enumerate(messages[: edit["before"]]):
        if "reasoning_content" in message:
            messages[index] = {k: v for k, v in message.items() if k != "reasoning_content"}


def _prune(messages: list[Message], edit: Edit, _: Threads) -> None:
    for index, message in enumerate(messages[: edit["before"]]):
        if message["role"] == "tool":
            messages[index] = {**message, "content": edit["text"]}


def _text_of(message: Message) -> str:
    content = message["content"]
    if not isinstance(content, str):
        raise EditFailed("the edit needs a message whose content is a text")
    return content


OPERATIONS: dict[str, Callable[[list[Message], Edit, Threads], None]] = {
    "splice": _splice,
    "append": _append,
    "replace": _replace,
    "drop_reasoning": _drop_reasoning,
    "prune": _prune,
}

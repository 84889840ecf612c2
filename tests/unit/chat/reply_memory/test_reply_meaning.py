"""All spellings of a reply mean the same, and different replies do not."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.api.openai.messages import parse_conversation
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.reply_memory.reply_meaning import (
    ReplyMeaning,
    history_key_after,
    history_keys_of,
    meaning_of_events,
    meaning_of_message,
)

CALL = {"path": "é/a", "lines": [1, 2.5], "deep": {"a": None, "b": True}}


def said(arguments: Any = None, **fields: Any) -> ReplyMeaning:
    """Return what an assistant message of a request says."""
    message: dict[str, Any] = {"role": "assistant", "content": "text", **fields}
    if arguments is not None:
        function = {"name": "read", "arguments": arguments}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
    return meaning_of_message(parse_conversation([message]).messages[0])


@pytest.mark.parametrize(
    "arguments",
    [
        CALL,
        dict(reversed(CALL.items())),
        '{"path":"\\u00e9/a","lines":[1.0,2.5],"deep":{"b":true,"a":null}}',
        '{\n  "deep": {"a": null, "b": true},\n  "lines": [1, 25e-1], "path": "é\\/a"}',
    ],
)
def test_spellings_of_arguments_are_one(arguments: Any) -> None:
    assert said(arguments).digest == said(CALL).digest


@pytest.mark.parametrize(
    "arguments",
    [
        {**CALL, "path": "é/b"},
        {**CALL, "lines": [2.5, 1]},
        {**CALL, "deep": {"a": None, "b": 1}},
        {**CALL, "lines": ["1", 2.5]},
        {},
        "[1]",
        '{"path": "é/a',
    ],
)
def test_other_arguments_are_another_reply(arguments: Any) -> None:
    assert said(arguments).digest != said(CALL).digest


def test_content_may_come_in_parts_trimmed_or_be_null() -> None:
    parts = [{"type": "text", "text": "text"}]
    assert said(content=parts).digest == said(content=" text\n").digest == said().digest
    assert said({}, content=None).digest == said("", content="  ").digest
    assert said(reasoning_content="").digest == said().digest


def test_reasoning_counts_in_one_digest_only() -> None:
    with_reasoning = said(reasoning_content="why")
    assert with_reasoning.digest != said().digest
    assert with_reasoning.bare_digest == said().bare_digest != said(content="b").bare_digest


def test_ids_do_not_count_and_names_do() -> None:
    def call(call_id: str, name: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    one = said(tool_calls=[call("a", "read"), call("b", "read")]).digest
    assert said(tool_calls=[call("x", "read"), call("y", "read")]).digest == one
    assert said(tool_calls=[call("a", "read"), call("b", "write")]).digest != one


def test_events_say_what_the_message_made_of_them_says() -> None:
    events: list[ReplyEvent] = [
        *(ReasoningText("wh"), ReasoningText("y"), ContentText("te"), ContentText("xt")),
        *(CallStart(0, "x", "read"), CallArguments(0, '{"path": "é/a", "lines": [1,'), CallEnd(0)),
        *(CallArguments(0, '2.5], "deep": {"a": null, "b": true}}'), ParseWarning("odd")),
    ]
    assert meaning_of_events(events).digest == said(CALL, reasoning_content="why").digest


def test_what_is_nested_too_deeply_is_like_nothing_else() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert (
        ReplyMeaning("", calls=(("f", deep),)).digest
        != ReplyMeaning("", calls=(("f", deep),)).digest
    )


def test_a_place_is_all_messages_before_it_but_for_reasoning() -> None:
    messages = parse_conversation(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "why"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "b"},
        ]
    ).messages
    user, reasoned, plain, other = messages
    assert history_key_after(history_key_after(b"", user), reasoned) == history_key_after(
        history_key_after(b"", user), plain
    )
    assert len({history_key_after(b"", message) for message in (user, plain, other)}) == 3


def looking_at(*sources: str, text: str = "look") -> tuple[bytes, ...]:
    """Return the history keys after messages of which each has one image."""
    part = {"type": "text", "text": text}
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": source}, part]}
        for source in sources
    ]
    return history_keys_of(parse_conversation(messages))


def test_other_images_make_another_place() -> None:
    one, other = "data:image/png;base64,AAAA", "data:image/png;base64,BBBB"
    assert looking_at(one, other) == looking_at(one, other)
    assert looking_at(one, one)[0] == looking_at(one, other)[0]
    keys = [*looking_at(one, one), *looking_at(other, one), looking_at(one, other)[1]]
    assert len(set(keys)) == len(keys)

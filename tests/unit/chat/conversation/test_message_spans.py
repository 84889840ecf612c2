"""Messages are found in rendered text by marks that leave no trace."""

from __future__ import annotations

import pytest

from milepost.chat.conversation.conversation import (
    MessageSpan,
    make_conversation,
    mark_messages,
    take_marks_out,
    take_messages,
)
from milepost.chat.conversation.rendered_prompt import common_prefix, common_suffix
from milepost.chat.conversation.sentinels import FIRST_SENTINEL

SENTINEL = chr(FIRST_SENTINEL)


def messages_of(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


def test_spans_are_those_of_the_texts_without_white_space() -> None:
    marked = mark_messages(make_conversation(messages_of(" one\n", "", "three")), SENTINEL)
    rendered = "".join(f"<{message['content']}>" for message in marked.messages)
    text, spans = take_marks_out(rendered, SENTINEL)
    assert text == "< one\n><><three>"
    assert spans == {0: MessageSpan(2, 5), 2: MessageSpan(10, 15)}


def test_reasoning_and_content_are_one_span() -> None:
    message = {"role": "assistant", "content": "so", "reasoning_content": "as"}
    (marked,) = mark_messages(make_conversation([message]), SENTINEL).messages
    text, spans = take_marks_out(
        f"{marked['reasoning_content']}</think>{marked['content']}", SENTINEL
    )
    assert text == "as</think>so"
    assert spans == {0: MessageSpan(0, 12)}


def test_only_later_messages_are_marked() -> None:
    conversation = make_conversation(messages_of("one", "two"))
    marked = mark_messages(conversation, SENTINEL, 1)
    assert marked.messages[0] == conversation.messages[0]
    assert take_marks_out(marked.messages[1]["content"], SENTINEL) == (
        "two",
        {1: MessageSpan(0, 3)},
    )


def test_a_message_put_after_others_is_left_out() -> None:
    marked = mark_messages(make_conversation(messages_of("system", "one", "two")), SENTINEL)
    contents = [message["content"] for message in marked.messages]
    _, spans = take_marks_out(contents[1] + contents[2] + contents[0], SENTINEL)
    assert spans == {1: MessageSpan(0, 3), 2: MessageSpan(3, 6)}


def test_taken_messages_keep_the_text_of_their_arguments() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{ "a":1}'}}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    conversation = make_conversation([*messages_of("one"), reply])
    assert take_messages(conversation, [1], None).argument_texts == {(0, 0): '{ "a":1}'}


@pytest.mark.parametrize(
    ("one", "other", "prefix", "suffix"),
    [
        ("", "", 0, 0),
        ("abc", "abc", 3, 3),
        ("abc", "abcd", 3, 0),
        ("abcX", "abcY", 3, 0),
        ("Xabc", "Yabc", 0, 3),
        ("a" * 1000 + "b" + "c" * 500, "a" * 1000 + "d" + "c" * 500, 1000, 500),
    ],
)
def test_common_ends(one: str, other: str, prefix: int, suffix: int) -> None:
    assert common_prefix(one, other) == common_prefix(other, one) == prefix
    assert common_suffix(one, other) == common_suffix(other, one) == suffix

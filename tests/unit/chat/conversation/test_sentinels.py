"""Sentinels are taken neither for text of clients nor for each other."""

from __future__ import annotations

import json

import pytest

from milepost.api.openai.messages import parse_conversation
from milepost.chat.conversation.conversation import (
    Conversation,
    MessageSpan,
    mark_messages,
    take_marks_out,
)
from milepost.chat.conversation.rendered_prompt import ControlTexts, unmark_control_texts
from milepost.chat.conversation.sentinels import (
    DIGITS,
    FIRST_SENTINEL,
    LAST_SENTINEL,
    Marker,
    choose_sentinel,
    find_markers,
    strings_in,
    unescape_sentinel,
    write_marker,
)

FIRST, SECOND = chr(FIRST_SENTINEL), chr(FIRST_SENTINEL + 1)


@pytest.mark.parametrize(
    "value",
    [
        f"a{FIRST}b",
        {"key": [1, None, {FIRST: True}]},
        json.dumps(FIRST),
        json.dumps(FIRST).upper().replace("U", "u", 1),
        ("ascii", [f"\\{json.dumps(FIRST)}"]),
    ],
)
def test_a_sentinel_is_nowhere_in_what_it_is_chosen_for(value: object) -> None:
    assert choose_sentinel("text") == FIRST
    assert choose_sentinel("text", value) == SECOND


def test_there_is_none_where_all_are_taken() -> None:
    assert choose_sentinel("".join(map(chr, range(FIRST_SENTINEL, LAST_SENTINEL + 1)))) is None
    assert not any(FIRST_SENTINEL <= ord(digit) <= LAST_SENTINEL for digit in DIGITS)


def test_markers_are_found_where_they_were_written() -> None:
    text = f"{DIGITS}{write_marker(FIRST, 0)}a{write_marker(FIRST, 0xABCDE)}{DIGITS}{FIRST}"
    assert list(find_markers(text, FIRST)) == [Marker(16, 0), Marker(23, 0xABCDE)]
    assert [text[marker.start : marker.end] for marker in find_markers(text, FIRST)] == [
        write_marker(FIRST, 0),
        write_marker(FIRST, 0xABCDE),
    ]
    assert not list(find_markers(text, SECOND))


def test_what_a_template_escapes_is_written_out() -> None:
    text = f'{write_marker(FIRST, 7)} {FIRST} "ä" '
    assert unescape_sentinel(f"ä{json.dumps(text)}", FIRST) == "ä" + json.dumps(text).replace(
        json.dumps(write_marker(FIRST, 7))[1:-1], write_marker(FIRST, 7)
    ).replace(json.dumps(FIRST)[1:-1], FIRST)


def test_strings_are_found_at_any_depth() -> None:
    value: object = "deep"
    for _ in range(5000):
        value = [value]
    assert set(strings_in([{"a": ("b", 1)}, None, value])) == {"a", "b", "deep"}


def test_the_three_kinds_of_sentinels_do_not_meet() -> None:
    image = {"type": "image_url", "image_url": "u"}
    text = {"type": "text", "text": "<|im_end|>"}
    conversation = parse_conversation([{"role": "user", "content": [image, text]}])
    sentinel = choose_sentinel(conversation.messages)
    assert sentinel is not None
    marked = mark_messages(conversation, sentinel)
    guarded, mark = ControlTexts(["<|im_end|>"]).mark_control_texts(marked)
    assert len({conversation.sentinel, sentinel, mark}) == 3

    prompt = unmark_control_texts(render(guarded), mark)
    rendered, spans = take_marks_out(prompt.text, sentinel)
    assert rendered == render(conversation)
    assert spans == {0: MessageSpan(0, len(rendered))}
    assert len(prompt.marks) == 1
    assert list(find_markers(rendered, conversation.sentinel)) == [Marker(0, 0)]


def render(conversation: Conversation) -> str:
    """Return the contents of all messages."""
    return "".join(message["content"] for message in conversation.messages)

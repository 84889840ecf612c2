"""Closed loop: the server's replies take the place of the recorded ones."""

from __future__ import annotations

from typing import Any

from milepost.bench.closed_loop import ReplyBook
from milepost.traces.trace import TraceRequest

USER = {"role": "user", "content": "Hello"}
CALLS = [{"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
RECORDED = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
OUTPUT = {"role": "tool", "content": "a.txt", "tool_call_id": "1"}


def request(messages: list[Any], reply: Any, session: str = "s") -> TraceRequest:
    return TraceRequest(
        id=0, session=session, kind="k", t=0, messages=messages, tools=[], reply=reply, markers={}
    )


def test_the_text_is_the_servers_and_the_calls_are_recorded() -> None:
    book = ReplyBook()
    book.note(request([USER], RECORDED), {"role": "assistant", "content": "Hm."})

    messages = book.messages_of(request([USER, RECORDED, OUTPUT], {}))

    expected = {"role": "assistant", "content": "Hm.", "tool_calls": CALLS}
    assert messages == [USER, expected, OUTPUT]


def test_calls_that_nobody_answered_are_left_out() -> None:
    book = ReplyBook()
    recorded = {"role": "assistant", "content": "Hi."}
    book.note(request([USER], recorded), {**RECORDED, "content": "Own."})

    assert book.messages_of(request([USER, recorded], {}))[1] == {
        "role": "assistant",
        "content": "Own.",
    }


def test_reasoning_goes_when_the_agent_strips_it() -> None:
    book = ReplyBook()
    recorded = {"role": "assistant", "content": "Hi.", "reasoning_content": "Greet."}
    reply = {"role": "assistant", "content": "Ho.", "reasoning_content": "Sing."}
    book.note(request([USER], recorded), reply)

    kept = book.messages_of(request([USER, recorded], {}))[1]
    stripped = book.messages_of(request([USER, {"role": "assistant", "content": "Hi."}], {}))[1]

    assert kept == reply
    assert stripped == {"role": "assistant", "content": "Ho."}


def test_other_sessions_and_unknown_replies_stay_as_recorded() -> None:
    book = ReplyBook()
    book.note(request([USER], RECORDED), {"role": "assistant", "content": "Hm."})

    assert book.messages_of(request([USER, RECORDED], {}, session="t")) == [USER, RECORDED]

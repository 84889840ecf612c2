"""A recording keeps each message once, and gives back the requests as they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.errors import BenchmarkFailed
from milepost.traces.recorder import open_recording
from milepost.traces.recording import RecordedRequest, Recording
from milepost.traces.trace import Trace, TraceRequest, read_trace, write_trace

SYSTEM = {"role": "system", "content": "You help."}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "write")]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def new_recording() -> Recording:
    return Recording(Trace(name="r", started="2026-01-01T00:00:00+00:00", threads={}, lines=()))


def add(recording: Recording, messages: list[Any], reply: Any, **fields: Any) -> None:
    usual: dict[str, Any] = {"t": 0.0, "took_s": 1.0, "tools": []}
    recording.add(
        RecordedRequest(
            **{"id": recording.take_id(), "messages": messages, "reply": reply} | usual | fields
        )
    )


def requests_of(recording: Recording) -> list[TraceRequest]:
    return list(recording.to_trace().requests())


def test_a_session_that_grows_keeps_each_message_once() -> None:
    recording = new_recording()
    first, second = [SYSTEM, user("a")], [SYSTEM, user("a"), assistant("b"), user("c")]
    add(recording, first, assistant("b"))
    add(recording, second, assistant("d"))

    trace = recording.to_trace()

    assert len(trace.threads["main"]) == 5
    assert [line.edits for line in trace.lines] == [(), ()]
    assert [request.messages for request in trace.requests()] == [first, second]
    assert [request.reply["content"] for request in trace.requests()] == ["b", "d"]


def test_branches_and_other_sessions_come_back_as_they_were() -> None:
    recording = new_recording()
    sent = [
        [SYSTEM, user("a")],
        [SYSTEM, user("a"), assistant("b"), user("c")],
        [user("title of a")],
        [SYSTEM, user("a"), assistant("b"), user("corrected")],
        [SYSTEM, user("other")],
    ]
    for messages in sent:
        add(recording, messages, assistant("b"))

    requests = requests_of(recording)

    assert [request.messages for request in requests] == sent
    assert [request.session for request in requests] == ["s1", "s1", "s2", "s1", "s3"]


def test_tools_are_all_none_or_some() -> None:
    recording = new_recording()
    for tools in (TOOLS[:1], [], TOOLS):
        add(recording, [user("a")], assistant("b"), tools=tools)

    trace = recording.to_trace()

    assert [line.tools for line in trace.lines] == [(0,), False, True]
    assert [request.tools for request in trace.requests()] == [TOOLS[:1], [], TOOLS]


@pytest.mark.parametrize(
    ("fields", "markers"),
    [
        ({}, {"took": 1.0}),
        ({"finish_reason": "length"}, {"took": 1.0, "stop": "length"}),
        ({"was_abandoned": True}, {"took": 1.0, "stop": "aborted"}),
        (
            {"was_abandoned": True, "has_begun": False},
            {"took": 1.0, "stop": "aborted", "cancel_after_fraction": 0.5},
        ),
        ({"comes_after_restart": True}, {"took": 1.0, "restart_before": True}),
    ],
)
def test_how_it_ended_is_marked(fields: dict[str, Any], markers: dict[str, Any]) -> None:
    recording = new_recording()
    add(recording, [user("a")], assistant("b"), **fields)

    assert requests_of(recording)[0].markers == markers


def test_images_are_marked_and_kinds_are_by_the_last_message() -> None:
    recording = new_recording()
    add(recording, [{"role": "user", "content": [{"type": "image_url"}]}], assistant("b"))
    add(recording, [user("a"), {"role": "tool", "content": "x"}], assistant("b"))

    first, second = requests_of(recording)

    assert (first.needs, first.kind) == ("images", "user_turn")
    assert (second.needs, second.kind) == ("", "tool_step")


def test_requests_are_in_the_order_in_which_they_came() -> None:
    recording = new_recording()
    slow, quick = recording.take_id(), recording.take_id()
    add(recording, [user("quick")], assistant("b"), id=quick)
    add(recording, [user("slow")], assistant("b"), id=slow)

    assert [request.messages[0]["content"] for request in requests_of(recording)] == [
        "slow",
        "quick",
    ]


def test_a_recording_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    before = open_recording(path)
    add(before, [SYSTEM, user("a")], assistant("b"), tools=TOOLS)
    write_trace(path, before.to_trace())

    after = open_recording(path)
    add(after, [SYSTEM, user("a"), assistant("b"), user("c")], assistant("d"), tools=TOOLS[1:])
    write_trace(path, after.to_trace())

    first, second = read_trace(path).requests()
    assert (first.id, first.session, first.tools) == (0, "s1", TOOLS)
    assert (second.id, second.session, second.tools) == (1, "s1", TOOLS[1:])
    assert len(read_trace(path).threads["main"]) == 5


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    notes, trace = tmp_path / "notes.txt", tmp_path / "made.jsonl"
    notes.write_text("mine")
    write_trace(trace, Trace(name="made", threads={"main": [], "side": []}, lines=()))

    with pytest.raises(BenchmarkFailed, match="is not a trace"):
        open_recording(notes)
    with pytest.raises(BenchmarkFailed, match="but not a recording"):
        open_recording(trace)
    with pytest.raises(BenchmarkFailed, match="cannot be written"):
        open_recording(tmp_path / "no" / "folder.jsonl")

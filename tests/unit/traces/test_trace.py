"""The trace format: what is written is read, every edit does its work, faults name their line."""

from __future__ import annotations

import importlib.util
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.published import TRACE_PATHS

from milepost.errors import BenchmarkFailed
from milepost.traces.trace import Message, Trace, TraceLine, read_trace, write_trace

SYSTEM = {"role": "system", "content": "You help."}
QUESTION = {"role": "user", "content": "What is in a.txt?"}
CALL: Message = {"role": "assistant", "content": "", "tool_calls": []}
CALL["reasoning_content"] = "I read it."
OUTPUT = {"role": "tool", "content": "one\ntwo", "tool_call_id": "1"}
ANSWER = {"role": "assistant", "content": "Two lines."}
THREAD: list[Message] = [SYSTEM, QUESTION, CALL, OUTPUT, ANSWER]
SIDE: list[Message] = [
    {"role": "user", "content": "By the way."},
    {"role": "assistant", "content": "Yes?"},
]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "write")]


def make_line(**fields: Any) -> TraceLine:
    usual: dict[str, Any] = {"id": 0, "session": "s", "kind": "k", "t": 0, "reply": 4}
    return TraceLine(**usual | fields)


def make_trace(*lines: TraceLine) -> Trace:
    threads = {"main": THREAD, "side": SIDE}
    return Trace(name="small", tools=TOOLS, threads=threads, lines=lines)


def expand(**fields: Any) -> list[dict[str, Any]]:
    (request,) = make_trace(make_line(**fields)).requests()
    return request.messages


def test_a_prompt_is_the_beginning_of_its_thread() -> None:
    assert expand(upto=2) == [SYSTEM, QUESTION]
    assert expand(upto=1, thread="side", reply=1) == SIDE[:1]


def test_splice_puts_messages_and_slices_of_threads_in() -> None:
    hello = {"role": "user", "content": "Hello"}
    items = [hello, {"ref": "side", "from": 0, "to": 2}]

    edit = {"op": "splice", "at": -1, "del": 1, "ins": items}

    assert expand(upto=2, edits=(edit,)) == [SYSTEM, hello, *SIDE]


def test_text_edits_change_one_message() -> None:
    append = {"op": "append", "at": -1, "text": " Soon!"}
    replace = {"op": "replace", "at": 0, "old": "help", "new": "work"}

    messages = expand(upto=2, edits=(append, replace))

    assert [m["content"] for m in messages] == ["You work.", "What is in a.txt? Soon!"]


def test_old_reasoning_and_old_outputs_can_go() -> None:
    drop = {"op": "drop_reasoning", "before": 3}
    prune = {"op": "prune", "before": 4, "text": "(removed)"}

    messages = expand(upto=4, edits=(drop, prune))

    assert messages[2] == {"role": "assistant", "content": "", "tool_calls": []}
    assert messages[3] == {**OUTPUT, "content": "(removed)"}


def test_edits_leave_the_thread_as_it_is() -> None:
    before = json.dumps(THREAD)

    expand(upto=4, edits=({"op": "prune", "before": 4, "text": ""},))

    assert json.dumps(THREAD) == before


@pytest.mark.parametrize(
    ("tools", "names"), [(True, ["read", "write"]), (False, []), ((1,), ["write"])]
)
def test_a_request_has_all_no_or_some_tools(tools: Any, names: list[str]) -> None:
    (request,) = make_trace(make_line(upto=2, tools=tools)).requests()

    assert [tool["function"]["name"] for tool in request.tools] == names


@pytest.mark.parametrize("reply", [4, ANSWER, {"ref": "main", "at": 4}])
def test_a_reply_is_an_index_a_message_or_a_reference(reply: Any) -> None:
    (request,) = make_trace(make_line(upto=4, reply=reply)).requests()

    assert request.reply == ANSWER


def test_markers_are_handed_out() -> None:
    markers = {"restart_before": True, "cancel_after_fraction": 0.5, "needs": "images", "x": 1}
    (request,) = make_trace(make_line(upto=2, markers=markers)).requests()

    assert request.has_restart_before
    assert request.cancel_after_fraction == 0.5
    assert request.needs == "images"
    assert request.markers["x"] == 1


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    edit = {"op": "append", "at": 0, "text": "ü"}
    trace = make_trace(
        make_line(upto=2, edits=(edit,), tools=False, markers={"stop": "length"}),
        make_line(id=1, upto=1, thread="side", tools=(0,), reply={"role": "assistant"}),
    )

    write_trace(path, trace)

    read = read_trace(path)
    assert read.lines == trace.lines
    assert (read.name, read.tools, read.threads) == (trace.name, TOOLS, trace.threads)


def test_a_trace_is_for_its_owner_only_also_over_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.touch(mode=0o644)

    write_trace(path, make_trace())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["small.jsonl"]


HEADER = json.dumps({"trace": 1, "name": "t", "threads": {"main": THREAD}})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "its first line is no JSON object"),
        ("# Traces", "its first line is no JSON object"),
        ('{"trace": 2}', "is a trace of format 2"),
        ('{"trace": 1}', "line 1: the header has no threads"),
        (HEADER + '\n\n{"id": 0, "reply": 0}', "line 3: the request has no 'upto'"),
        (HEADER + "\n{", "line 2 is not a request"),
        (HEADER + '\n{"id": 0, "upto": 6, "reply": 0}', "request 0 refers to what is not there"),
        (HEADER + '\n{"id": 7, "upto": 2, "reply": 9}', "request 7 refers to what is not there"),
        (HEADER + '\n{"id": 0, "upto": 1, "reply": 0}' * 2, "two requests with id 0"),
        (
            HEADER + '\n{"id": 0, "upto": 1, "reply": 0, "edits": [{"op": "turn"}]}',
            "there is no edit named 'turn'",
        ),
        (
            HEADER
            + '\n{"id": 0, "upto": 1, "reply": 0, "edits": '
            + '[{"op": "replace", "at": 0, "old": "cat", "new": ""}]}',
            "the text to replace is not there: 'cat'",
        ),
    ],
)
def test_a_faulty_file_is_refused_in_one_sentence(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "faulty.jsonl"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(BenchmarkFailed, match=complaint) as caught:
        read_trace(path)

    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"GGUF\xff\xfe")

    with pytest.raises(BenchmarkFailed, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(BenchmarkFailed, match="not a text in UTF-8"):
        read_trace(tmp_path / "binary")


def test_the_example_of_the_document_is_a_trace(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "trace-format.md").read_text("utf-8")
    path = tmp_path / "example.jsonl"
    path.write_text(document.split("```json\n")[1].split("```")[0], "utf-8")

    requests = list(read_trace(path).requests())

    assert [len(request.messages) for request in requests] == [2, 4, 4]
    assert requests[2].messages[3]["content"] == "What is there?"
    assert requests[2].reply["content"] == "This."


@pytest.mark.parametrize("path", TRACE_PATHS, ids=lambda path: path.stem)
def test_recorded_traces_expand_as_their_own_reader_does(path: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("trace_format", path.parent / "trace_format.py")
    assert spec is not None
    assert spec.loader is not None
    trace_format: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trace_format)
    trace = read_trace(path)
    write_trace(tmp_path / "copy.jsonl", trace)

    copied = trace_format.load(tmp_path / "copy.jsonl")
    for theirs, again, ours in zip(trace_format.load(path), copied, trace.requests(), strict=True):
        assert theirs == again
        assert theirs["body"]["messages"] == ours.messages
        assert theirs["body"].get("tools", []) == ours.tools
        assert theirs["reply"] == ours.reply

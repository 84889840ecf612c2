"""Redaction hides what it knows by its form, and keeps what requests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import BenchmarkFailed
from milepost.traces.redact import RedactionRules, Redactor, redact_file, redact_trace
from milepost.traces.trace import Trace, TraceLine, read_trace, write_trace


def redact(text: str, **rules: Any) -> str:
    redactor = Redactor(RedactionRules(**rules))
    redactor.learn_names(text)
    return redactor.redact_text(text)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/marta/x.py by Marta", "/home/user1/x.py by user1"),
        ("/Users/jo.doe/a, jo.doe-mac", "/Users/user1/a, user1-mac"),
        (r"C:\Users\petra\a", r"C:\Users\user1\a"),
        ("/home/anna /home/anna2 anna2 annals", "/home/user1 /home/user2 user2 annals"),
        ("to m.x+y@some.org, m.x+y@some.org", "to someone1@example.com, someone1@example.com"),
        ("ssh 192.168.1.20:22 and 10.1.2.30", "ssh ip-1:22 and ip-2"),
        ("from fe80::1ff:fe23:4567:890a to 2001:db8::77", "from address-1 to address-2"),
        ("at 00:1a:2b:3c:4d:5e", "at mac-1"),
        ("key sk-abcdefghijklmnop123 and AKIAABCDEFGHIJKLMNOP", "key key-1 and key-2"),
    ],
)  # fmt: skip
def test_what_is_found_by_its_form(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080 on 0.0.0.0",
        "version 1.2.3.4 and 1.2.3",
        "std::io::Read, a::b",
        "12:30:15",
        "/home/user/project",
        "user@example.com",
        "task-sk-1",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert redact(text) == text


def test_names_and_folders_of_the_user_are_replaced() -> None:
    text = "/srv/secret/app: Acme_tool, acme, Acmeist"

    redacted = redact(text, names=["Acme"], paths=["/srv/secret"])

    assert redacted == "/folder1/app: name1_tool, name1, Acmeist"


def make_trace() -> Trace:
    system = {"role": "system", "content": "You work in /home/marta/proj."}
    call = {"function": {"name": "ls", "arguments": json.dumps({"path": "/home/marta/proj"})}}
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    edit = {"op": "replace", "at": 0, "old": "/home/marta/proj", "new": "/home/marta/other"}
    lines = (
        TraceLine(id=0, session="marta", kind="k", t=0, upto=1, reply=1),
        TraceLine(id=1, session="marta", kind="k", t=1, upto=2, reply=assistant, edits=(edit,)),
    )
    return Trace(name="marta.day", threads={"main": [system, assistant]}, lines=lines)


def test_nothing_of_a_name_is_left_in_a_trace(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_trace(source, make_trace())

    placeholders = redact_file(source, target, RedactionRules())

    assert "marta" not in target.read_text()
    assert placeholders["marta"] == "user1"
    _, second = read_trace(target).requests()
    assert second.messages[0]["content"] == "You work in /home/user1/other."
    assert json.loads(second.reply["tool_calls"][0]["function"]["arguments"]) == {
        "path": "/home/user1/proj"
    }


def test_words_of_the_format_are_not_touched() -> None:
    redacted, _ = redact_trace(make_trace(), RedactionRules(names=["replace", "system"]))

    assert redacted.lines[1].edits[0]["op"] == "replace"
    assert redacted.threads["main"][0]["role"] == "system"


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    write_trace(source, make_trace())

    with pytest.raises(BenchmarkFailed, match="is there already"):
        redact_file(source, source, RedactionRules())

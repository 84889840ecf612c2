"""`milepost serve --record` and its use: record, redact, replay."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from tests.processes import ServerFailed

from milepost.cli.main import run
from milepost.traces.trace import read_trace

SYSTEM = {"role": "system", "content": "You work in /home/marta/project."}


def test_a_recorded_session_can_be_redacted_and_replayed(
    start_server: Any, tiny_models: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    recording, shown = tmp_path / "day.jsonl", tmp_path / "shown.jsonl"
    recorder = start_server(tiny_models["full"], "--record", str(recording), "-t", "1")
    messages: list[Any] = [SYSTEM]
    replies = []
    for stream in (False, True):
        messages.append({"role": "user", "content": f"Turn {len(messages)}"})
        body = {"messages": messages, "max_tokens": 4, "stream": stream}
        answer = recorder.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        if not stream:
            messages.append(answer.json()["choices"][0]["message"])
            replies.append(messages[-1])
    recorder.process.terminate()
    recorder.process.wait(20)

    first, second = read_trace(recording).requests()
    assert first.reply == replies[0]
    assert second.messages == messages
    assert second.reply["role"] == "assistant"
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600
    assert recorder.read_log().count("recording all chats") == 1

    assert run(["bench", "redact", str(recording), "-o", str(shown)]) == 0
    assert "marta" not in shown.read_text()

    replayed = start_server(tiny_models["full"], "-t", "1")
    capsys.readouterr()
    assert run(["bench", "replay", str(shown), "--url", replayed.url, "--max-tokens", "2"]) == 0
    assert "tool_step" not in capsys.readouterr().out


def test_a_file_that_is_no_recording_stops_the_start(
    start_server: Any, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")

    with pytest.raises(ServerFailed, match=r"ended with 1:[\s\S]*notes.txt is not a trace"):
        start_server(tiny_models["full"], "--record", str(notes), "-t", "1")

    assert notes.read_text() == "mine"

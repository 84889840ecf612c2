"""`milepost warm` on a real server: the next conversation begins where it stopped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.processes import RunningServer, milepost_script, running_server

from milepost.traces.trace import Trace, TraceLine, write_trace

TOOLS = [{"type": "function", "function": {"name": "read", "description": "Reads. " * 20}}]


@pytest.fixture(scope="module")
def server(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log_path = tmp_path_factory.mktemp("warm") / "server.log"
    flags = ["-c", "8192", "-np", "2", "-t", "1"]
    with running_server(tiny_models["hybrid"], flags, log_path) as server:
        yield server


def warm(server: RunningServer, path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(milepost_script()), "warm", str(path), "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def system(name: str) -> dict[str, str]:
    return {"role": "system", "content": f"You are {name}, careful and brief. " * 40}


def ask(server: RunningServer, name: str, tools: Any = None) -> tuple[int, int]:
    """Return how many prompt tokens of a new conversation were known, and computed."""
    messages = [system(name), {"role": "user", "content": "What is new?"}]
    body = {"messages": messages, "tools": tools or [], "max_tokens": 1, "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    return answer["timings"]["cache_n"], answer["timings"]["prompt_n"]


def test_a_text_is_a_system_prompt(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "system.txt"
    path.write_text(system("Ada")["content"], encoding="utf-8")
    done = warm(server, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1/1: ")
    num_known, num_new = ask(server, "Ada")
    assert num_known > 300
    assert num_new < 60


def test_a_body_has_tools(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text(json.dumps({"messages": [system("Bo")], "tools": TOOLS}), encoding="utf-8")
    assert warm(server, path).returncode == 0
    assert ask(server, "Bo", TOOLS)[1] < 60


def test_each_beginning_of_a_trace_is_computed_once(server: RunningServer, tmp_path: Path) -> None:
    threads = {
        name: [system(name), {"role": "user", "content": "Hi."}, {"role": "user", "content": "Ho."}]
        for name in ("Cleo", "Dan")
    }
    lines = [
        TraceLine(id=number, session=name, kind="user_turn", t=0.0, thread=name, upto=upto, reply=1)
        for number, (name, upto) in enumerate([("Cleo", 2), ("Cleo", 3), ("Dan", 2)])
    ]
    path = tmp_path / "day.jsonl"
    write_trace(path, Trace(name="day", threads=threads, lines=lines))
    done = warm(server, path)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["1/2", "2/2"]
    assert ask(server, "Cleo")[0] > 300
    assert ask(server, "Dan")[0] > 300


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"tools": []}', 'no "messages"'), (b"\xff\xfe", "not a text in UTF-8")],
)
def test_a_file_of_no_use_is_one_sentence(
    server: RunningServer, tmp_path: Path, content: str | bytes, words: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = warm(server, path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr

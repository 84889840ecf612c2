"""What goes over the wire while a model works: headers, progress, pings, and lost clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import ONE_THREAD, StartServer
from tests.processes import RunningServer
from tests.server.conftest import wait_until_idle

LONG_PROMPT_TOKENS = 2000


def long_prompt(first_token: int) -> list[int]:
    """Return a prompt that takes seconds; with its own first token nothing can be reused."""
    return [first_token, *(33 + i % 90 for i in range(LONG_PROMPT_TOKENS - 1))]


def read_frames(response: httpx.Response) -> Iterator[tuple[float, str]]:
    """Yield the lines of a stream that are not empty, with the time at which they came."""
    for line in response.iter_lines():
        if line:
            yield time.monotonic(), line


def open_stream(server: RunningServer, **fields: Any) -> Any:
    return server.http.stream("POST", "/v1/completions", json={**fields, "stream": True})


def test_headers_go_out_before_the_prefill_and_progress_follows(
    slow_server: RunningServer,
) -> None:
    started = time.monotonic()

    fields = {"prompt": long_prompt(1), "max_tokens": 2, "return_progress": True}
    with open_stream(slow_server, **fields) as response:
        headers_s = time.monotonic() - started
        frames = [
            (at - started, json.loads(line.removeprefix("data: ")))
            for at, line in read_frames(response)
            if line != "data: [DONE]"
        ]

    progress = [frame["prompt_progress"] for _, frame in frames if "prompt_progress" in frame]
    first_text_s = next(at for at, frame in frames if frame["choices"][0]["text"])
    assert response.headers["content-type"].startswith("text/event-stream")
    assert headers_s < 0.3 < first_text_s
    assert len(progress) > 2
    assert [p["processed"] for p in progress] == sorted(p["processed"] for p in progress)
    assert progress[-1]["processed"] == progress[-1]["total"] == LONG_PROMPT_TOKENS
    assert progress[-1]["cache"] == 0
    assert progress[-1]["time_ms"] > 100


def test_a_silent_prefill_is_bridged_by_pings(slow_server: RunningServer) -> None:
    fields = {"prompt": long_prompt(2), "max_tokens": 1, "sse_ping_interval": 1}
    with open_stream(slow_server, **fields) as response:
        lines = [line for _, line in read_frames(response)]

    assert lines[0] == ":"
    assert lines[-1] == "data: [DONE]"


def test_no_pings_when_they_are_off(slow_server: RunningServer) -> None:
    fields = {"prompt": long_prompt(3), "max_tokens": 1, "sse_ping_interval": -1}
    with open_stream(slow_server, **fields) as response:
        lines = [line for _, line in read_frames(response)]

    assert ":" not in lines


def test_a_client_that_leaves_during_prefill_frees_the_engine(slow_server: RunningServer) -> None:
    with open_stream(slow_server, prompt=long_prompt(4), max_tokens=1) as response:
        assert response.status_code == 200  # and nothing else is read

    assert wait_until_idle(slow_server) < 2
    assert "client left" in slow_server.read_log()


def test_a_client_that_leaves_while_it_waits_for_a_whole_answer(
    slow_server: RunningServer,
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow_server.http.post(
            "/v1/completions", json={"prompt": long_prompt(5), "max_tokens": 1}, timeout=0.3
        )

    assert wait_until_idle(slow_server) < 2


def test_a_client_that_leaves_during_decoding_frees_the_engine(server: RunningServer) -> None:
    fields = {"prompt": "Once", "ignore_eos": True}  # would go on for 8,000 tokens
    with open_stream(server, **fields) as response:
        frames = read_frames(response)
        for _ in range(5):
            next(frames)

    assert wait_until_idle(server) < 2


def test_a_lost_client_leaves_the_others_alone(server: RunningServer) -> None:
    whole = {"prompt": "Twice", "temperature": 0, "ignore_eos": True, "max_tokens": 40}
    expected = server.http.post("/v1/completions", json=whole).json()["choices"][0]["text"]

    with open_stream(server, **whole) as kept:
        frames = read_frames(kept)
        first = next(frames)
        with open_stream(server, prompt="Once", ignore_eos=True) as lost:
            next(read_frames(lost))
        events = [line.removeprefix("data: ") for _, line in [first, *frames]]

    assert events.pop() == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == expected


def test_a_full_queue_refuses_until_a_waiting_client_leaves(
    start_server: StartServer, slow_model: Path
) -> None:
    server = start_server(slow_model, "-np", "1", "--max-waiting", "1", "--metrics", *ONE_THREAD)

    def ask(first_token: int) -> int:
        with open_stream(server, prompt=long_prompt(first_token), max_tokens=1) as response:
            return int(response.status_code)

    with open_stream(server, prompt=long_prompt(6), max_tokens=1) as running:
        with open_stream(server, prompt=long_prompt(7), max_tokens=1) as waiting:
            assert waiting.status_code == 200
            refused = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "with 1 waiting for 1 slots" in refused.json()["error"]["message"]
        statuses = [ask(8)]
        while statuses[-1] == 503 and len(statuses) < 50:  # a lost client is noticed in a moment
            time.sleep(0.02)
            statuses.append(ask(8))
        frames = [line for _, line in read_frames(running)]
    assert statuses[-1] == 200
    assert len(frames) == 3  # the first one went on: text, its end, [DONE]
    refusals = f"milepost_requests_refused_total {float(statuses.count(503) + 1)}\n"
    assert refusals in server.http.get("/metrics").text


def test_running_timings(server: RunningServer) -> None:
    fields = {"prompt": "Thrice", "max_tokens": 5, "ignore_eos": True, "timings_per_token": True}
    with open_stream(server, **fields) as response:
        lines = [line.removeprefix("data: ") for _, line in read_frames(response)]

    events = [json.loads(line) for line in lines[:-1]]
    counts = [event["timings"]["predicted_n"] for event in events if "timings" in event]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert events[0]["timings"]["prompt_n"] + events[0]["timings"]["cache_n"] == 6

"""`milepost bench replay` on real servers, and on one that knows nothing of llama-server."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.openai_server import Script, running_openai_server
from tests.processes import RunningServer, find_free_port

from milepost.bench.measures import RequestMeasure, TraceMeasure, read_measure
from milepost.bench.replay import Progress, ReplayOptions, replay
from milepost.cli.main import run
from milepost.client.server_client import ServerClient
from milepost.traces.trace import Trace, TraceLine, write_trace

SYSTEM = {"role": "system", "content": "You are an agent. " + "Work with care. " * 30}


def make_thread(topic: str, num_turns: int) -> list[dict[str, Any]]:
    thread: list[dict[str, Any]] = [SYSTEM]
    for turn in range(num_turns):
        thread.append({"role": "user", "content": f"{topic}, part {turn}: " + "go on; " * 20})
        thread.append({"role": "assistant", "content": f"Part {turn} of {topic} is done."})
    return thread


def make_trace(*lines: TraceLine) -> Trace:
    threads = {"main": make_thread("a", 4), "other": make_thread("b", 4)}
    return Trace(name="small", threads=threads, lines=lines)


def line(number: int, upto: int, thread: str = "main", **markers: Any) -> TraceLine:
    return TraceLine(
        id=number,
        session=thread,
        kind="turn",
        t=float(number),
        thread=thread,
        upto=upto,
        reply=upto,
        markers=markers,
    )


TURNS = make_trace(*(line(number, 2 + 2 * number) for number in range(4)))


async def replay_on(url: str, trace: Trace, options: ReplayOptions) -> TraceMeasure:
    async with ServerClient(url) as client:
        await client.connect()
        return await replay(trace, client, options, lambda progress: None)


def measure(url: str, trace: Trace, **options: Any) -> TraceMeasure:
    return asyncio.run(replay_on(url, trace, ReplayOptions(max_tokens=4, **options)))


def column(measured: TraceMeasure, name: str) -> list[Any]:
    return [getattr(request, name) for request in measured.requests]


def test_an_append_only_session_costs_what_the_oracle_says(server: RunningServer) -> None:
    measured = measure(server.url, TURNS, concurrency=2)

    assert column(measured, "status") == ["ok"] * 4
    assert column(measured, "num_prefilled")[1:] == column(measured, "num_oracle")[1:]
    assert column(measured, "num_prefilled_twice") == [0] * 4
    assert measured.totals.cached_share is not None
    assert measured.totals.cached_share > 0.5
    assert measured.notes == ()


def test_every_number_is_measured(server: RunningServer) -> None:
    (first, *_) = measure(server.url, TURNS).requests

    assert isinstance(first, RequestMeasure)
    assert first.num_prompt_tokens == (first.num_cached or 0) + (first.num_prefilled or 0)
    assert first.ttft_s is not None
    assert first.prefill_ms is not None
    assert 0 < first.prefill_ms / 1e3 < first.ttft_s < first.took_s
    assert first.num_decoded == 4
    assert first.decode_tokens_per_s is not None


def test_the_closed_loop_sends_the_replies_of_the_server(server: RunningServer) -> None:
    opened, closed = measure(server.url, TURNS), measure(server.url, TURNS, closed=True)

    assert closed.is_closed_loop
    assert opened.requests[0].num_prompt_tokens == closed.requests[0].num_prompt_tokens
    assert opened.requests[3].num_prompt_tokens != closed.requests[3].num_prompt_tokens


def test_a_cancelled_prefill_counts_as_far_as_it_came(slow_server: RunningServer) -> None:
    long_text = {"role": "user", "content": "A long story. " * 250}
    threads = {"main": [long_text, {"role": "assistant", "content": ""}]}
    lines = (line(0, 1, cancel_after_fraction=0.3), line(1, 1))

    cancelled, retried = measure(
        slow_server.url, Trace(name="retry", threads=threads, lines=lines)
    ).requests

    assert cancelled.status == "cancelled"
    assert cancelled.num_prompt_tokens == retried.num_prompt_tokens
    assert cancelled.num_prefilled is not None
    assert retried.num_oracle is not None
    assert cancelled.num_prompt_tokens is not None
    assert 0 < cancelled.num_prefilled <= cancelled.num_prompt_tokens
    assert cancelled.num_prefilled + retried.num_oracle >= cancelled.num_prompt_tokens


def test_a_restart_comes_before_its_request(server: RunningServer) -> None:
    events: list[str] = []

    async def restart() -> None:
        events.append("restart")

    async def replay_and_note() -> TraceMeasure:
        def note(progress: Progress) -> None:
            if progress.step == "replaying":
                events.append(str(progress.num_done))

        trace = make_trace(line(0, 2), line(1, 4, restart_before=True))
        async with ServerClient(server.url) as client:
            await client.connect()
            return await replay(trace, client, ReplayOptions(restart=restart), note)

    measured = asyncio.run(replay_and_note())

    assert events == ["0", "restart", "1", "2"]
    assert measured.totals.num_ok == 2


def test_without_a_way_to_restart_the_result_says_so(server: RunningServer) -> None:
    measured = measure(server.url, make_trace(line(0, 2, restart_before=True)))

    assert measured.notes == ("the trace restarts the server; it was left running",)


def test_what_needs_images_is_skipped(server: RunningServer) -> None:
    measured = measure(server.url, make_trace(line(0, 2), line(1, 4, needs="images")))

    assert column(measured, "id") == [0]
    assert measured.notes == ("skipped, because they need images: 1",)


def test_a_begin_token_in_the_template_is_counted_once(
    start_server: Any, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    template = tmp_path / "bos.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    served = start_server(tiny_models["window"], "--chat-template-file", str(template), "-t", "1")

    measured = measure(served.url, TURNS)

    assert measured.notes == ()  # else: "the server counts other prompt tokens"
    assert measured.totals.num_ok == 4


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    write_trace(path, TURNS)
    return path


def test_the_command_prints_a_table_and_writes_json(
    server: RunningServer, trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path = trace_path.with_name("small.json")
    flags = ["--url", f"{server.url}/v1", "--max-tokens", "2", "--json", str(json_path), "--each"]

    status = run(["bench", "replay", str(trace_path), *flags])

    assert status == 0
    shown = capsys.readouterr().out
    assert "small by kind" in shown
    assert "milepost-" in shown
    assert column(read_measure(json_path), "id") == [0, 1, 2, 3]


def test_a_server_that_reports_little_is_measured_as_far_as_it_goes(
    trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    with running_openai_server(script) as url:
        status = run(["bench", "replay", str(trace_path), "--url", url])

    shown = capsys.readouterr().out
    assert status == 0
    assert "not reported" in shown
    assert "the server has no /tokenize: what would have been needed is not known" in shown
    assert "the server does not report how many prompt tokens were cached" in shown
    assert {body["model"] for body in script.bodies} == {"fake-1"}
    assert not any("return_progress" in body for body in script.bodies)


def test_a_prefill_without_progress_is_cancelled_by_the_clock() -> None:
    script = Script(prefill_s=30.0)
    with running_openai_server(script) as url:
        measured = measure(url, make_trace(line(0, 2, cancel_after_fraction=0.01)))
        assert script.was_left.wait(5.0)

    assert column(measured, "status") == ["cancelled"]
    assert column(measured, "num_prefilled") == [None]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            Script(status=400, message="roles must\nalternate"),
            "request 0 (turn): the server answered 400: roles must alternate",
        ),
        (Script(status=401, message="no key"), "the server answered 401: no key"),
    ],
)
def test_a_refused_request_ends_the_replay(
    script: Script, complaint: str, trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_openai_server(script) as url:
        status = run(["bench", "replay", str(trace_path), "--url", url])

    assert status == 1
    assert complaint in capsys.readouterr().err
    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(breaks_off=True), "the answer ended without its end mark"),
        (Script(status=503, message="busy"), "the server answered 503: busy"),
    ],
)
def test_a_failed_request_is_counted_and_the_next_one_sent(
    script: Script, reason: str, trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_openai_server(script) as url:
        status = run(["bench", "replay", str(trace_path), "--url", url])

    assert status == 1
    assert f"failed: 4, the first was request 0: {reason}" in capsys.readouterr().out
    assert len(script.bodies) == 4


def test_sessions_run_side_by_side() -> None:
    script = Script(prefill_s=1.0)
    trace = make_trace(line(0, 2), line(1, 4), line(2, 2, "other"), line(3, 4, "other"))
    with running_openai_server(script) as url:
        first, second, third, fourth = measure(url, trace, concurrency=2).requests

    assert third.sent_s < first.sent_s + first.took_s
    assert second.sent_s >= first.sent_s + first.took_s
    assert fourth.sent_s >= third.sent_s + third.took_s


def test_ctrl_c_shows_and_keeps_what_is_known(trace_path: Path) -> None:
    json_path = trace_path.with_name("small.json")
    script = Script(prefill_s=0.5)
    program = [sys.executable, "-m", "milepost.cli.main", "bench", "replay", str(trace_path)]
    with (
        running_openai_server(script) as url,
        subprocess.Popen(
            [*program, "--url", url, "--json", str(json_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        while len(script.bodies) < 3 and process.poll() is None:
            script.has_body.wait(20.0)
            script.has_body.clear()
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=20.0)

    assert process.returncode == 130
    assert errors.strip() == ""
    assert "small: interrupted; requests measured: 2" in shown
    assert read_measure(json_path).was_interrupted
    assert column(read_measure(json_path), "id") == [0, 1]


def test_a_missing_key_is_asked_for(
    guarded_server: RunningServer, trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["bench", "replay", str(trace_path), "--url", guarded_server.url])

    assert status == 1
    assert "401: Invalid API Key; give its key with --api-key" in capsys.readouterr().err


def test_an_unreachable_server_is_one_sentence(
    trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{find_free_port()}"

    status = run(["bench", "replay", str(trace_path), "--url", url])

    assert status == 1
    error = capsys.readouterr().err
    assert error.startswith(f"milepost: error: no server to measure at {url}: ")
    assert error.count("\n") == 1


def test_a_context_that_is_too_small_is_found_before_anything_is_sent(
    start_server: Any,
    tiny_models: dict[str, Path],
    trace_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = start_server(tiny_models["full"], "-c", "256")

    status = run(["bench", "replay", str(trace_path), "--url", small.url])

    assert status == 1
    captured = capsys.readouterr()
    assert "request 3 needs a context of" in captured.err
    assert captured.out == ""


def test_a_message_order_that_the_template_refuses_is_named(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.jsonl"
    odd = [{"role": "narrator", "content": "Once"}]
    lines = (TraceLine(id=5, session="s", kind="odd", t=0, upto=1, reply={}),)
    write_trace(path, Trace(name="odd", threads={"main": odd}, lines=lines))

    status = run(["bench", "replay", str(path), "--url", server.url])

    assert status == 1
    error = capsys.readouterr().err
    assert "request 5 (odd): the server answered 400:" in error
    assert "narrator" in error


def test_a_restart_command_that_fails_ends_the_replay(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "restart.jsonl"
    write_trace(path, make_trace(line(0, 2), line(1, 4, restart_before=True)))
    flags = ["--url", server.url, "--restart-command", "exit 3"]

    status = run(["bench", "replay", str(path), *flags])

    assert status == 1
    captured = capsys.readouterr()
    assert "the restart command ended with status 3: exit 3" in captured.err
    assert "interrupted; requests measured: 1" in captured.out

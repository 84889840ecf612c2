"""Real conversations with real servers, and what those say about them afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.conftest import ONE_THREAD, StartServer
from tests.processes import RunningServer, running_server
from tests.server.conftest import API_KEY, wait_until_idle

SYSTEM = "You are a careful assistant. " * 20
LONG = "Please look at the following files and say what they do. " * 12

Message = dict[str, Any]


FLAGS = ("-np", "1", "--metrics", *ONE_THREAD)


@pytest.fixture(scope="module")
def shared_hybrid(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log_path = tmp_path_factory.mktemp("hybrid") / "server.log"
    with running_server(tiny_models["hybrid"], FLAGS, log_path) as server:
        yield server


@pytest.fixture
def hybrid(shared_hybrid: RunningServer) -> RunningServer:
    """A server with one slot, without a memory of the test before."""
    shared_hybrid.http.delete("/cache").raise_for_status()
    return shared_hybrid


@pytest.fixture
def new_hybrid(start_server: StartServer, tiny_models: dict[models.Kind, Path]) -> RunningServer:
    """A server of its own, whose list of requests and counters are empty."""
    return start_server(tiny_models["hybrid"], *FLAGS)


def chat(server: RunningServer, *messages: Message, **fields: Any) -> dict[str, Any]:
    """Return an answer after checking that its counts agree with its report."""
    body = {"messages": [*messages], "max_tokens": 8, "temperature": 0, **fields}
    answer = server.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    report = why(server, answer)
    facts = report["facts"]
    usage = answer["usage"]
    assert facts["prompt_tokens"] == usage["prompt_tokens"]
    assert facts["reused_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert facts["reused_tokens"] == answer["timings"]["cache_n"]
    assert facts["prefilled_tokens"] == answer["timings"]["prompt_n"]
    return {**answer, **report}


def why(server: RunningServer, answer: dict[str, Any]) -> dict[str, Any]:
    response = server.http.get(f"/requests/{answer['id']}/why").raise_for_status()
    report: dict[str, Any]
    (report,) = response.json()["prompts"]
    return report


def reason(answer: dict[str, Any]) -> str:
    return str(answer["interpretation"]["reason"])


def reply(answer: dict[str, Any]) -> Message:
    return message("assistant", answer["choices"][0]["message"]["content"])


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def test_a_conversation_is_explained_turn_by_turn(hybrid: RunningServer) -> None:
    system, first = message("system", SYSTEM), message("user", LONG)

    answer = chat(hybrid, system, first)
    assert reason(answer) == "first_request"

    longer = chat(hybrid, system, first, reply(answer), message("user", "go on"))
    assert longer["facts"]["reused_tokens"] >= answer["usage"]["prompt_tokens"]
    assert longer["facts"]["source"] in ("kv_cache", "ram")

    side = chat(hybrid, system, message("user", "Something else: " + LONG))
    assert reason(side) == "branch"
    found = side["facts"]["divergence"]
    assert (found["message_index"], found["role"]) == (1, "user")
    assert found["prompt_excerpt"].startswith("Something else: ")
    assert found["known_excerpt"].startswith("Please look at")
    assert side["facts"]["reused_tokens"] > 0
    assert side["facts"]["source"] in ("ram", "rewind")


def test_changes_of_the_system_prompt_and_of_tools_are_told_apart(server: RunningServer) -> None:
    system, user = message("system", "Be brief. " + SYSTEM), message("user", LONG)
    tools = [{"type": "function", "function": {"name": name}} for name in ("read", "write")]
    chat(server, system, user, tools=tools[:1])

    assert reason(chat(server, system, user, tools=tools)) == "changed_tools"
    changed = message("system", "Be brief. Now: " + SYSTEM)
    assert reason(chat(server, changed, user, tools=tools)) == "changed_system"


def test_a_place_that_the_client_marks_is_gone_on_from(hybrid: RunningServer) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    def ask(facts: str, question: str, **mark: Any) -> int:
        parts = [{"type": "text", "text": facts, **mark}, {"type": "text", "text": question}]
        answer = chat(hybrid, {"role": "user", "content": parts})
        reused: int = answer["facts"]["reused_tokens"]
        return reused

    ask("Marked. " + LONG, "What is it? " * 30, **mark)
    ask("Plain. " + LONG, "What is it? " * 30)

    num_facts = len(hybrid.http.post("/tokenize", json={"content": LONG}).json()["tokens"])
    assert ask("Marked. " + LONG, "Who wrote it?", **mark) >= num_facts
    assert ask("Plain. " + LONG, "Who wrote it?") < num_facts


def test_a_reminder_that_moves_along_costs_no_more_than_itself(hybrid: RunningServer) -> None:
    reminder = "\n\n<reminder>Nothing is committed without being asked for.</reminder>"
    history = [message("system", SYSTEM)]
    reused = []
    for question in ("One. ", "Two. ", "Three. "):
        text = question + LONG
        answer = chat(hybrid, *history, message("user", text + reminder))
        reused.append(answer["facts"]["known_tokens"] - answer["facts"]["reused_tokens"])
        history += [message("user", text), message("assistant", "Done.")]

    assert reused[1] > 100  # nobody knew of it yet
    assert reused[2] <= 2


def test_reasoning_that_the_client_drops(server: RunningServer) -> None:
    user = message("user", "Think well. " + LONG)
    thoughts = "First I look at the files, one by one, with all their lines. " * 4
    whole = {**message("assistant", "They do nothing at all."), "reasoning_content": thoughts}
    chat(server, user, whole, message("user", "Really?"))

    answer = chat(
        server, user, message("assistant", "They do nothing at all."), message("user", "Really?")
    )

    assert reason(answer) == "stripped_reasoning"
    assert answer["facts"]["divergence"]["role"] == "assistant"


def test_the_list_and_the_log_say_the_same_without_the_text(new_hybrid: RunningServer) -> None:
    answer = chat(new_hybrid, message("user", "A secret: " + LONG), max_tokens=3)

    (listed,) = new_hybrid.http.get("/requests").json()["requests"]
    assert (listed["id"], listed["status"], listed["source"]) == (answer["id"], 200, "none")
    assert listed["prompt_tokens"] == answer["usage"]["prompt_tokens"]

    (line,) = [line for line in new_hybrid.read_log().splitlines() if answer["id"] in line][:1]
    assert re.search(r"prefilled \d+ in \d+ chunks, 0 of them again, .*first_request", line)
    assert "secret" not in new_hybrid.read_log()


def test_the_cache_is_shown_pinned_dropped_and_cleared(hybrid: RunningServer) -> None:
    def post(path: str, answer: dict[str, Any]) -> int:
        return hybrid.http.post(path, json={"request_id": answer["id"]}).status_code

    first = chat(hybrid, message("user", "One. " + LONG))
    second = chat(hybrid, message("user", "Two. " + LONG))
    assert post("/cache/pin", first) == 200
    held = hybrid.http.get("/cache").json()
    assert (
        held["ram"]["bytes"] == held["ram"]["segment_bytes"] + held["ram"]["checkpoint_bytes"] > 0
    )
    assert [node for node in held["tree"]["nodes"] if node["pins"]]
    assert held["kv_cache"]["tokens"] > 100
    assert post("/cache/unpin", first) == 200
    nodes = hybrid.http.get("/cache").json()["tree"]["nodes"]
    assert not [node for node in nodes if node["pins"]]

    assert post("/cache/drop", second) == 200
    assert post("/cache/drop", second) == 404
    assert hybrid.http.get("/cache").json()["ram"]["bytes"] < held["ram"]["bytes"]
    kept = chat(hybrid, message("user", "One. " + LONG), reply(first), message("user", "More"))
    assert kept["facts"]["reused_tokens"] >= first["usage"]["prompt_tokens"]
    again = chat(hybrid, message("user", "Two. " + LONG))
    assert again["facts"]["known_tokens"] < 32

    assert hybrid.http.delete("/cache").json()["freed_bytes"] > 0
    empty = hybrid.http.get("/cache").json()
    assert (empty["ram"]["bytes"], empty["kv_cache"]["tokens"], empty["tree"]["tokens"]) == (
        0,
        0,
        0,
    )
    assert reason(chat(hybrid, message("user", "One. " + LONG))) == "first_request"
    assert post("/cache/pin", first) == 404


def test_prometheus_counts_what_was_computed_twice(new_hybrid: RunningServer) -> None:
    prompt = message("user", LONG)
    chat(new_hybrid, prompt)
    facts = chat(new_hybrid, prompt, cache_prompt=False)["facts"]

    text = new_hybrid.http.get("/metrics").text

    twice = facts["prefilled_twice_tokens"]
    assert twice == facts["prompt_tokens"] - 1
    assert f"milepost_prompt_tokens_prefilled_twice_total {float(twice)}\n" in text
    assert 'milepost_restores_total{source="ram"} 0.0\n' in text
    assert re.search(r"milepost_saved_bytes_total [1-9]", text)


def test_a_client_that_left_is_explained_as_well(slow_server: RunningServer) -> None:
    body = {"prompt": 40 * [7, *range(33, 93)], "max_tokens": 1, "stream": True}
    with slow_server.http.stream("POST", "/v1/completions", json=body):
        wait_until_busy(slow_server)  # one that leaves before has nothing to be explained
    wait_until_idle(slow_server)

    listed = wait_for_report(slow_server)

    assert (listed["is_running"], listed["reason"]) == (False, "first_request")
    assert why(slow_server, listed)["facts"]["prefilled_tokens"] < 40 * 61


def wait_until_busy(server: RunningServer) -> None:
    """Wait until a slot works on a request."""
    deadline_s = time.monotonic() + 10
    while not any(slot["is_processing"] for slot in server.http.get("/slots").json()):
        assert time.monotonic() < deadline_s, "no slot works"


def wait_for_report(server: RunningServer) -> dict[str, Any]:
    """Return the last request when its report is there: a moment after its slot is idle."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        listed: dict[str, Any] = server.http.get("/requests").json()["requests"][0]
        if listed["reason"] is not None:
            break
        time.sleep(0.02)
    return listed


def test_keys_guard_all_of_it(guarded_server: RunningServer) -> None:
    http = guarded_server.http
    assert http.get("/requests").status_code == http.get("/cache").status_code == 401
    assert http.delete("/cache").status_code == 401
    headers = {"Authorization": f"Bearer {API_KEY}"}
    assert http.get("/cache", headers=headers).status_code == 200

"""Conversations with models of random weights, whose tokens no tokenizer would make of their text:
nothing but what a turn adds is computed, and the answers are those without a cache.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.conftest import ONE_THREAD, StartServer
from tests.processes import RunningServer
from tests.server.conftest import wait_until_idle
from tests.soak import soak_beside

NUM_SAMPLED = 40
TOOLS = [{"type": "function", "function": {"name": "read"}}]
# Not as the template writes it: two spaces, other line breaks.
CALL_GRAMMAR = (
    r'root ::= "<think>" [a-z]{5,12} "</think>\n\n<tool_call>\n{\"name\":  \"read\", '
    r'\"arguments\":{\"path\": \"" [a-z]{3,12} "\"}}\n</tool_call>"'
)
TURN_END = str(models.token_id(models.TURN_END))
FAMILIES = ("chatml", "gemma", "mistral-v3", "falcon3")

Message = dict[str, Any]


def ask(server: RunningServer, messages: list[Message], **fields: Any) -> dict[str, Any]:
    """Return an answer with its facts under `facts`, and what became of replies."""
    body = {"messages": messages, "max_tokens": NUM_SAMPLED, "return_tokens": True, **fields}
    answer = server.http.post("/v1/chat/completions", json=body).raise_for_status().json()
    why = server.http.get(f"/requests/{answer['id']}/why").raise_for_status().json()
    return {**answer, **why["prompts"][0], "replies": why["replies"]}


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def count_tokens(server: RunningServer, text: str) -> int:
    return len(server.http.post("/tokenize", json={"content": text}).json()["tokens"])


def talk(server: RunningServer, num_turns: int) -> list[dict[str, Any]]:
    """Return the answers of a conversation, sampled at random, with replies sent as parts."""
    messages: list[Message] = [{"role": "user", "content": "Look at this. " * 20}]
    answers = []
    for turn in range(num_turns):
        answers.append(ask(server, messages, temperature=1.5, seed=turn))
        parts = [{"type": "text", "text": text_of(answers[-1]) + "\n"}]
        messages.append({"role": "assistant", "content": parts})
        messages.append({"role": "user", "content": f"Go on with {turn}."})
    return answers


@pytest.mark.parametrize("family", soak_beside(FAMILIES, ("chatml", "mistral-v3")))
def test_nothing_that_was_sampled_is_computed_again(
    start_server: StartServer, tiny_models: dict[models.Kind, Path], family: str
) -> None:
    flags = ("--chat-template", family, "-np", "1", *ONE_THREAD)
    server = start_server(tiny_models["hybrid"], *flags)
    answers = talk(server, 4)

    for number, (before, after) in enumerate(itertools.pairwise(answers), 1):
        num_sampled = len(before["choices"][0]["tokens"])
        # The state after the last token is not there if it was sampled at the limit.
        held = before["usage"]["prompt_tokens"] + num_sampled - 1
        assert after["facts"]["reused_tokens"] >= held
        assert after["replies"]["exact"] == number
    counts = [len(each["choices"][0]["tokens"]) for each in answers]
    assert counts != [count_tokens(server, text_of(each)) for each in answers]  # else it was easy


@pytest.mark.parametrize("kind", models.KINDS)
def test_answers_behind_exact_history_are_those_without_a_cache(
    tiny_server: Any, kind: models.Kind
) -> None:
    server = tiny_server(kind)
    messages: list[Message] = [{"role": "user", "content": "Begin here. " * 20}]
    for turn in range(3):
        answer = ask(server, messages, temperature=1.5, seed=40 + turn)
        messages.append({"role": "assistant", "content": text_of(answer)})
        messages.append({"role": "user", "content": "And on."})
    fields = {"temperature": 0, "logprobs": True, "max_tokens": 12}

    cached = ask(server, messages, **fields)
    alone = ask(server, messages, cache_prompt=False, **fields)

    assert cached["replies"]["exact"] == alone["replies"]["exact"] == 3
    assert alone["facts"]["reused_tokens"] == 0
    assert cached["facts"]["reused_tokens"] > 0
    assert cached["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert text_of(cached)[:8] == text_of(alone)[:8]


def test_a_loop_of_calls_computes_nothing_twice_though_the_client_rewrites_it(
    start_server: StartServer, tiny_models: dict[models.Kind, Path]
) -> None:
    server = start_server(tiny_models["hybrid"], "-np", "1", *ONE_THREAD, "--restore-reasoning")
    fields = {"tools": TOOLS, "grammar": CALL_GRAMMAR, "max_tokens": 120, "temperature": 1.2}
    messages: list[Message] = [{"role": "user", "content": "Look at it. " * 20}]
    held = 0
    for turn in range(3):
        answer = ask(server, messages, seed=turn, **fields)
        assert answer["facts"]["reused_tokens"] >= held
        assert answer["replies"]["exact"] == turn
        held = answer["usage"]["prompt_tokens"] + len(answer["choices"][0]["tokens"])
        reply = answer["choices"][0]["message"]
        assert reply.pop("reasoning_content")
        (call,) = reply["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        function = {"arguments": json.dumps(arguments, indent=2), "name": "read"}
        sent = {"type": "function", "id": f"mine{turn}", "function": function}
        messages.append({**reply, "tool_calls": [sent]})
        messages.append({"role": "tool", "tool_call_id": f"mine{turn}", "content": "a file"})


def test_what_a_client_has_seen_before_it_left_is_not_computed_again(
    start_server: StartServer, tiny_models: dict[models.Kind, Path]
) -> None:
    server = start_server(tiny_models["hybrid"], "-np", "1", *ONE_THREAD)
    messages: list[Message] = [{"role": "user", "content": "Begin here. " * 20}]
    body = {"messages": messages, "stream": True, "temperature": 1.5, "seed": 3, "max_tokens": 4000}
    seen: list[str] = []
    with server.http.stream(
        "POST", "/v1/chat/completions", json={**body, "logit_bias": {TURN_END: False}}
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and '"content":"' in line:
                seen.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
            if len(seen) > 30:
                break
    wait_until_idle(server)
    messages.append({"role": "assistant", "content": "".join(seen)})

    answer = ask(server, [*messages, {"role": "user", "content": "And on."}])

    assert answer["replies"]["exact"] == 1
    assert answer["facts"]["prefilled_tokens"] < 60


def test_a_restart_forgets_no_reply_and_a_clear_does(
    start_server: StartServer, tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    flags = ("-np", "1", *ONE_THREAD, "--cache-on-disk", "--cache-dir", str(folder))
    messages: list[Message] = [{"role": "user", "content": "Begin here. " * 40}]
    server = start_server(tiny_models["hybrid"], *flags)
    first = ask(server, messages, temperature=1.5, seed=1)
    messages.append({"role": "assistant", "content": text_of(first)})
    messages.append({"role": "user", "content": "And on."})
    server.process.terminate()
    assert server.process.wait(30) == 0

    server = start_server(tiny_models["hybrid"], *flags)
    second = ask(server, messages)
    assert second["replies"]["exact"] == 1
    assert second["facts"]["source"] == "disk"
    assert second["facts"]["reused_tokens"] >= first["usage"]["prompt_tokens"] + NUM_SAMPLED - 1

    server.http.delete("/cache").raise_for_status()
    assert ask(server, [*messages, *messages])["replies"]["exact"] == 0

"""Reasoning and tool calls through the official SDK; a grammar makes the model write each reply.

The grammar allows one text only, so a model with random weights samples it, token by token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import openai
import pytest
from pydantic import BaseModel
from tests import models
from tests.conftest import StartServer
from tests.processes import running_server

QUESTION: list[Any] = [{"role": "user", "content": "What is in a.py?"}]


class Read(BaseModel):
    """Read lines of a file."""

    path: str
    line: int


TOOLS: list[Any] = [openai.pydantic_function_tool(Read)]
ARGUMENTS = r'{"path": "é\n", "line": 3}'
CALL = f'<tool_call>\n{{"name": "Read", "arguments": {ARGUMENTS}}}\n</tool_call>'
REPLY = f"<think>\nLook.\n</think>\n\nLooking.\n{CALL}\n{CALL}"


@pytest.fixture(scope="module")
def client(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """The SDK, connected to a server of its own: one thread is faster for a model this small."""
    log_path = tmp_path_factory.mktemp("servers") / "calls.log"
    with running_server(tiny_models["full"], ["-np", "2", "-t", "1"], log_path) as server:
        address = f"{server.url}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as connected:
            yield connected


def write_only(text: str) -> dict[str, Any]:
    """Return the field that lets a model write one text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {"grammar": f'root ::= "{escaped}"'}


def ask(client: openai.OpenAI, text: str, **changes: Any) -> Any:
    """Return an answer, or a stream, with this reply."""
    extra = {**write_only(text), **changes.pop("extra_body", {})}
    options = {"model": "", "messages": QUESTION, "tools": TOOLS, "temperature": 0}
    return client.chat.completions.create(**{**options, "extra_body": extra, **changes})


def test_a_message_has_reasoning_text_and_calls(client: openai.OpenAI) -> None:
    choice = ask(client, REPLY).choices[0]

    message = choice.message
    assert choice.finish_reason == "tool_calls"
    assert message.content == "Looking."
    assert message.model_extra["reasoning_content"] == "Look."
    assert [call.function.name for call in message.tool_calls] == ["Read", "Read"]
    assert len({call.id for call in message.tool_calls}) == 2
    for call in message.tool_calls:
        assert json.loads(call.function.arguments) == {"path": "é\n", "line": 3}


def test_the_stream_helper_parses_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="", messages=QUESTION, tools=TOOLS, temperature=0, extra_body=write_only(REPLY)
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking."
    assert choice.message.tool_calls is not None
    parsed = [call.function.parsed_arguments for call in choice.message.tool_calls]
    assert parsed == 2 * [Read(path="é\n", line=3)]
    pieces = [
        event.arguments_delta
        for event in events
        if event.type == "tool_calls.function.arguments.delta" and event.index == 0
    ]
    assert len(pieces) > 10
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["Read", "Read"]
    assert "".join(pieces) == done[0].arguments


def test_a_reply_that_is_only_a_call_has_null_content(client: openai.OpenAI) -> None:
    message = ask(client, CALL).choices[0].message
    chunks = list(ask(client, CALL, stream=True))

    assert message.content is None
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_a_truncated_call_is_surfaced(client: openai.OpenAI) -> None:
    choice = ask(client, CALL, max_tokens=50).choices[0]

    assert choice.finish_reason == "length"
    arguments = choice.message.tool_calls[0].function.arguments
    assert len(arguments) > 3
    assert ARGUMENTS.startswith(arguments)


def test_a_loop_of_two_steps(client: openai.OpenAI) -> None:
    first = ask(client, REPLY).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "x = 1"} for call in first.tool_calls
    ]

    messages = [*QUESTION, first.model_dump(exclude_none=True), *results]
    second = ask(client, "<think>\nSo.\n</think>\n\nIt sets x.", messages=messages)

    assert second.choices[0].message.content == "It sets x."
    assert second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_every_chunk_of_several_choices_belongs_to_one(client: openai.OpenAI) -> None:
    chunks = ask(client, REPLY, n=2, stream=True)

    arguments = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                arguments[choice.index] += call.function.arguments

    assert arguments[0] == arguments[1]
    assert arguments[0].count("path") == 2


def test_logprobs_are_of_all_that_was_sampled(client: openai.OpenAI) -> None:
    whole = ask(client, REPLY, logprobs=True).choices[0]
    chunks = list(ask(client, REPLY, logprobs=True, stream=True))

    streamed = [
        entry.token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in whole.logprobs.content] == streamed
    text = b"".join(bytes(entry.bytes) for entry in whole.logprobs.content).decode()
    assert text == REPLY


def test_what_is_no_call_is_text(client: openai.OpenAI) -> None:
    text = "<tool_call>\nRead a.py\n</tool_call>"

    choice = ask(client, text).choices[0]

    assert (choice.message.content, choice.finish_reason) == (text, "stop")


START, END = "<|tool_call_start|>", "<|tool_call_end|>"


@pytest.fixture(scope="module")
def marked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose markers of tool calls are control tokens."""
    tokens = [*models.vocabulary(), START, END]
    template = models.DEFAULT_TEMPLATE.replace("\\n<tool_call>\\n", START)
    template = template.replace("\\n</tool_call>", END)
    template = re.sub("Write each call as .*?</tool_call>", "Call them", template)

    def add_to(writer: gguf.GGUFWriter) -> None:
        models.add_vocabulary(writer, (START, END))

    recipe = models.Recipe("full", template=template, vocabulary=models.Vocabulary(tokens, add_to))
    return models.write_recipe(recipe, tmp_path_factory.mktemp("models") / "marked.gguf")


def test_markers_that_are_control_tokens_are_seen(
    start_server: StartServer, marked_model: Path
) -> None:
    server = start_server(marked_model, "-t", "1")
    start = len(models.vocabulary())
    biases = {str(start): 100, str(start + 1): 100}
    reply = f'Looking.{START}{{"name": "Read", "arguments": {{"line": 3}}}}{END}'

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as marked:
        called = ask(marked, reply, logit_bias=biases, extra_body={"return_tokens": True})
        plain = ask(marked, reply, logit_bias=biases, tools=[])

    assert {start, start + 1} < set(called.choices[0].model_extra["tokens"])
    message = called.choices[0].message
    assert message.content == "Looking."
    assert message.tool_calls[0].function.arguments == '{"line": 3}'
    assert START not in plain.choices[0].message.content

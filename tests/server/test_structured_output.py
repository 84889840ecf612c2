"""Schemas, forced calls and budgets of reasoning through the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests import models, sentencepiece
from tests.conftest import StartServer
from tests.processes import running_server

QUESTION: list[Any] = [{"role": "user", "content": "Which file?"}]
THINKING_TEMPLATE = models.DEFAULT_TEMPLATE.replace(
    "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}"
)


class Find(BaseModel):
    """Find files."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["all", "some"]
    depth: int = Field(ge=1, le=9)
    deep: bool


TOOLS: list[Any] = [openai.pydantic_function_tool(Find)]
NAMED: Any = {"type": "function", "function": {"name": "Find"}}


@pytest.fixture(scope="module")
def client(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """The SDK, connected to a server whose template lets every reply think first."""
    folder = tmp_path_factory.mktemp("servers")
    template = folder / "thinking.jinja"
    template.write_text(THINKING_TEMPLATE, encoding="utf-8")
    flags = ["-np", "2", "-t", "1", "--chat-template-file", str(template)]
    log_path = folder / "structured.log"
    with running_server(tiny_models["full"], flags, log_path) as server:
        address = f"{server.url}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as connected:
            yield connected


def options(**changes: Any) -> dict[str, Any]:
    """Return the fields of a request; its reasoning is short."""
    extra = {"reasoning_budget": 4, "reasoning_budget_message": " enough"}
    defaults = {"model": "", "messages": QUESTION, "seed": 5, "max_tokens": 300}
    return {**defaults, "extra_body": {**extra, **changes.pop("extra_body", {})}, **changes}


def test_the_sdk_parses_text_that_follows_its_schema(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(**options(response_format=Find))
    message = completion.choices[0].message
    assert isinstance(message.parsed, Find)
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"].endswith(" enough")


def test_an_object_is_asked_for_and_got(client: openai.OpenAI) -> None:
    schema = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted: Any = {"type": "json_object", "schema": {"type": "object", **schema}}
    answer = client.chat.completions.create(**options(response_format=wanted))
    text = answer.choices[0].message.content
    assert text is not None
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert json.loads(text)["a"] in (True, False)


def test_a_named_tool_is_called_behind_reasoning(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(
        **options(tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False)
    )
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Find)


def test_a_forced_call_is_streamed(client: openai.OpenAI) -> None:
    fields = options(tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False)
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Find)


def test_reasoning_is_as_long_as_its_budget(client: openai.OpenAI) -> None:
    fields = options(extra_body={"reasoning_budget": 3, "return_tokens": True}, max_tokens=20)
    answer = client.chat.completions.create(**fields)
    choice = answer.choices[0]
    assert choice.model_extra is not None
    tokens = choice.model_extra["tokens"]
    assert tokens.index(models.token_id("</think>")) == 3 + len(" enough") - 2  # " e" and "en"
    assert choice.message.content


def test_bad_wishes_get_the_place_of_what_is_wrong(client: openai.OpenAI) -> None:
    bad: Any = {"type": "json_object", "schema": {"properties": {"a": {"type": "strin"}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**options(response_format=bad))
    assert caught.value.param == "response_format.schema.properties.a"


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 7]}},
            "required": ["city", "days"],
        },
    },
}


def test_smollm2_takes_two_steps_with_a_tool(
    smollm2_path: Path, start_server: StartServer, tmp_path: Path
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(models.DEFAULT_TEMPLATE, encoding="utf-8")
    flags = ["-c", "2048", "-t", "1", "--chat-template-file", str(template)]
    server = start_server(smollm2_path, *flags)
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    fields: dict[str, Any] = {"model": "", "temperature": 0, "tools": [WEATHER]}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(
            messages=messages, tool_choice=named, parallel_tool_calls=False, **fields
        )
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        arguments = json.loads(call.function.arguments)
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"},
        ]
        second = client.chat.completions.create(
            messages=messages, tool_choice="none", max_tokens=12, **fields
        )
    assert first.choices[0].finish_reason == "tool_calls"
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["days"] in (1, 7)
    assert second.choices[0].message.content
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_replies_are_held_with_a_sentencepiece_vocabulary(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(sentencepiece.write_model(tmp_path / "sentencepiece.gguf"), "-t", "1")
    const = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "42"}}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask: Any = client.chat.completions.create
        answer = ask(**options(response_format=const))
        called = ask(**options(tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False))
    assert answer.choices[0].message.content == '"42"'
    (call,) = called.choices[0].message.tool_calls
    assert Find.model_validate_json(call.function.arguments)
    assert [one.choices[0].finish_reason for one in (answer, called)] == ["stop", "tool_calls"]

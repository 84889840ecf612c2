"""Fields that constrain replies: what the engine is told, and what is refused before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.engine import delta, finished
from tests.fakes.vocab import CONTROLS, END_THINK
from tests.unit.api.conftest import Api
from tests.unit.chat.grammar_walks import Walker

from milepost.config import Settings
from milepost.protocol.messages import ReasoningLimit
from milepost.protocol.sampling import SamplingParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BAD = {"type": "object", "properties": {"a": {"type": "strin"}}}
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def holds_schema(grammar: str) -> bool:
    walker = Walker(grammar, CONTROLS)
    return walker.accepts('{"a": 1}') and not walker.accepts('{"a": "x"}')


def tool(name: str = "read", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **function}}


def constraint_of(api: Api, **fields: Any) -> str:
    response = api.chat(delta("x"), finished(), **fields)
    assert response.status_code == 200, response.text
    constraint: str = api.engine.specs[-1].constraint
    return constraint


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
    ],
)
def test_a_schema_constrains_every_endpoint(api: Api, fields: dict[str, Any]) -> None:
    chat = constraint_of(api, **fields)
    assert holds_schema(chat)
    assert "<think>" in chat  # may stand before it
    for path in ("/completion", "/v1/completions"):
        api.post(path, prompt="x", **fields)
        raw = api.engine.specs[-1].constraint
        assert holds_schema(raw)
        assert "<think>" not in raw


def test_text_is_free_without_tools(api: Api) -> None:
    assert constraint_of(api) == ""
    assert constraint_of(api, response_format={"type": "text"}, tool_choice="none") == ""


def test_a_choice_of_tools_decides_what_may_be_called(api: Api) -> None:
    tools = [tool("read"), tool("write")]
    lazy = constraint_of(api, tools=tools)
    assert "read" in lazy
    assert '"integer"' not in lazy  # arguments of tools that are not strict are free
    assert '"integer"' in constraint_of(api, tools=[tool(strict=True)])
    assert constraint_of(api, tools=tools, tool_choice="none") == ""
    required = constraint_of(api, tools=tools, tool_choice="required")
    named = constraint_of(
        api, tools=tools, tool_choice={"type": "function", "function": {"name": "write"}}
    )
    assert "read" in required
    assert "read" not in named
    assert '"integer"' in named
    one = constraint_of(api, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert len(one) < len(required)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"json_schema": BAD}, "json_schema.properties.a", "Invalid type: strin"),
        ({"json_schema": []}, "json_schema", "must be a JSON schema, an object, not []"),
        (
            {"json_schema": SCHEMA, "response_format": {"type": "json_object"}},
            "json_schema",
            "send one of them",
        ),
        ({"json_schema": SCHEMA, "grammar": 'root ::= "a"'}, "grammar", "send one of them"),
        (
            {"tools": [tool()], "tool_choice": "required", "grammar": 'root ::= "a"'},
            "grammar",
            "send one of them",
        ),
        ({"tool_choice": "required"}, "tool_choice", "the request has no tools"),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            'names "x", but the tools are read',
        ),
        (
            {"tools": [tool(), tool("bad", parameters=BAD, strict=True)]},
            "tools[1].function.parameters.properties.a",
            "Invalid type: strin",
        ),
        ({"reasoning_budget": -2}, "reasoning_budget", "must be between -1 and"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_held_is_refused(
    api: Api, fields: dict[str, Any], param: str, message: str, stream: bool
) -> None:
    response = api.chat(stream=stream, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]
    assert api.engine.specs == []


def test_a_bad_schema_is_refused_by_the_raw_endpoints(api: Api) -> None:
    for path in ("/completion", "/v1/completions"):
        response = api.post(path, prompt="x", json_schema=BAD)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "json_schema.properties.a"


def test_a_call_is_forced_in_the_form_that_is_described_where_a_template_has_none(api: Api) -> None:
    api.template = PLAIN_TEMPLATE
    assert "<tool_call>" in constraint_of(api, tools=[tool()], tool_choice="required")


def test_a_call_cannot_be_forced_where_there_is_no_place_for_tools(api: Api) -> None:
    api.template = "{{ messages | length }}"
    response = api.chat(tools=[tool()], tool_choice="required")
    assert response.status_code == 400
    assert "use a template with tools" in response.json()["error"]["message"]


def test_a_grammar_of_the_client_is_left_alone(api: Api) -> None:
    assert constraint_of(api, tools=[tool(strict=True)], grammar='root ::= "a"') == ""
    assert api.engine.specs[-1].sampling.grammar == 'root ::= "a"'


def test_a_grammar_of_the_server_yields_to_what_a_request_asks_for(api: Api) -> None:
    api.settings = Settings(sampling=SamplingParams(grammar='root ::= "a"'))
    assert constraint_of(api, tools=[tool()]) == ""
    assert constraint_of(api, json_schema=SCHEMA) != ""


# --- reasoning ---------------------------------------------------------------------------

OPEN_TEMPLATE_END = "{%- if add_generation_prompt -%}{{ '<think>\\n' }}{%- endif -%}"


def limit_of(api: Api, **fields: Any) -> ReasoningLimit | None:
    response = api.chat(delta("x"), finished(), **fields)
    assert response.status_code == 200, response.text
    limit: ReasoningLimit | None = api.engine.specs[-1].reasoning
    return limit


def with_chat(api: Api, **changes: Any) -> Settings:
    return replace(api.settings, chat=replace(api.settings.chat, **changes))


def test_there_is_no_limit_unless_one_is_asked_for(api: Api) -> None:
    assert limit_of(api) is None
    assert limit_of(api, reasoning_budget=-1) is None


@pytest.mark.parametrize(
    "name", ["reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"]
)
def test_a_request_may_limit_reasoning(api: Api, name: str) -> None:
    limit = limit_of(api, **{name: 40}, reasoning_budget_message="So.")
    assert limit == ReasoningLimit(
        start="<think>", end="</think>", max_tokens=40, ending=(*b"So.", END_THINK)
    )


def test_a_server_may_limit_reasoning_and_a_request_change_that(api: Api) -> None:
    api.settings = with_chat(api, reasoning_budget=7, reasoning_budget_message="!")
    limit = limit_of(api)
    assert limit is not None
    assert (limit.max_tokens, limit.ending) == (7, (*b"!", END_THINK))
    assert limit_of(api, reasoning_budget=-1) is None


def prompt_of(api: Api, **fields: Any) -> str:
    response = api.post("/apply-template", messages=[{"role": "user", "content": "hi"}], **fields)
    return str(response.json()["prompt"])


@pytest.mark.parametrize("changes", [{"reasoning": "off"}, {"reasoning_budget": 0}])
def test_reasoning_that_is_off_is_told_to_the_template(api: Api, changes: dict[str, Any]) -> None:
    assert not prompt_of(api).endswith("</think>\n\n")
    assert prompt_of(api, reasoning_budget=0).endswith("</think>\n\n")
    api.settings = with_chat(api, **changes)
    assert prompt_of(api).endswith("</think>\n\n")
    asked = {"chat_template_kwargs": {"enable_thinking": True}}
    assert not prompt_of(api, **asked).endswith("</think>\n\n")
    assert limit_of(api, **asked) is None


def test_reasoning_that_a_template_opens_anyway_ends_at_once(api: Api) -> None:
    api.template += OPEN_TEMPLATE_END
    limit = limit_of(api, reasoning_budget=0)
    assert limit is not None
    assert limit.is_open
    assert limit.max_tokens == 0
    forced = constraint_of(api, tools=[tool()], tool_choice="required", reasoning_budget=0)
    assert "</think>" in forced  # the reply has to write it

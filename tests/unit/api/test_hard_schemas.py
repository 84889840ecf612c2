"""Requests whose tools have schemas and names as servers of tools really send them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.engine import MODEL, FakeEngine, delta, finished
from tests.fakes.vocab import CONTROLS
from tests.published import TEMPLATE_PATHS, read_template
from tests.unit.api.conftest import Api
from tests.unit.chat.grammar_walks import Walker

from milepost.chat.templates.template import ChatTemplate

REQUESTS = Path(__file__).parents[2] / "samples" / "requests"
CODER = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"


def body_of(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((REQUESTS / f"{name}.json").read_text("utf-8"))
    return {key: value for key, value in body.items() if not key.startswith("_")}


@pytest.fixture
def api() -> Api:
    """An app over a fake engine with room for long prompts."""
    model = msgspec.structs.replace(
        MODEL, num_context_tokens=1 << 16, num_context_train_tokens=1 << 16
    )
    return Api(engine=FakeEngine(model=model))


def post(api: Api, template: str, body: dict[str, Any], reply: str = "x") -> Any:
    """Return the answer to a body, for which the engine writes a reply."""
    api.template = read_template(template)
    api.engine.steps = (delta(reply), finished())
    return api.post("/v1/chat/completions", **body)


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]


def walker_of(api: Api) -> Walker:
    """Return a walker of what the engine was told last."""
    return Walker(api.engine.specs[-1].constraint, CONTROLS)


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def deploy(*pairs: tuple[str, str]) -> str:
    return CODER.format("deploy", "".join(parameter(*pair) for pair in pairs))


def test_parameters_behind_a_reference_are_read_as_if_they_were_written_out(api: Api) -> None:
    body = body_of("02-root-ref-parameters-tagged")
    reply = deploy(("version", "1.10"), ("zip", "01234"), ("note", "null"))
    answer = post(api, "Qwen3-Coder", body, reply)
    assert calls_of(answer) == [("deploy", {"version": "1.10", "zip": "01234", "note": "null"})]


def test_parameters_behind_a_reference_hold_a_forced_call(api: Api) -> None:
    body = body_of("02-root-ref-parameters-tagged")
    del body["grammar"]
    body["tool_choice"] = {"type": "function", "function": {"name": "deploy"}}
    post(api, "Qwen3-Coder", body)
    walker = walker_of(api)
    assert walker.accepts(deploy(("version", "1.10"), ("zip", "01234")))
    assert not walker.accepts(deploy(("zip", "01234")))
    assert not walker.accepts(deploy(("version", "1.10"), ("other", "1")))


@pytest.mark.parametrize("name", ["Qwen3-Coder", "GLM-4.6", "MiniMax-M2", "ByteDance-Seed-OSS"])
def test_a_reference_to_a_property_is_resolved(api: Api, name: str) -> None:
    answer = post(api, name, body_of("03-ref-to-properties-required"))
    assert answer.status_code == 200, answer.text


def test_what_a_reference_to_a_property_asks_for_is_held(api: Api) -> None:
    post(api, "Qwen3-Coder", body_of("03-ref-to-properties-required"))
    walker = walker_of(api)
    assert walker.accepts(deploy(("from", '{"line": 1}'), ("to", '{"line": 2}')))
    assert not walker.accepts(deploy(("from", '{"line": 1}'), ("to", '{"line": "2"}')))
    assert not walker.accepts(deploy(("from", '{"line": 1}')))


def test_an_integer_in_all_of_is_one(api: Api) -> None:
    post(api, "Qwen3-Coder", body_of("05-allof-integer-required"))
    walker = walker_of(api)
    assert walker.accepts(deploy(("count", "3")))
    assert not walker.accepts(deploy(("count", "three")))
    answer = post(api, "Qwen3-Coder", body_of("05-allof-integer-required"), deploy(("count", "3")))
    assert calls_of(answer) == [("deploy", {"count": 3})]


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_a_large_enum_is_written_in_every_format(api: Api, path: Path) -> None:
    body = body_of("07-enum-1500-named")
    answer = post(api, path.stem, body)
    if answer.status_code == 400 and "does not show how" in answer.text:
        pytest.skip("the template shows no calls")
    assert answer.status_code == 200, answer.text
    values = body["tools"][0]["function"]["parameters"]["properties"]["id"]["enum"]
    ((name, arguments),) = calls_of(post(api, path.stem, body, write_reply(api)))[:1]
    assert name == "pick"
    assert arguments["id"] in values
    assert len(values) == 1500


def write_reply(api: Api) -> str:
    """Return a reply that the grammar of the last request allows."""
    reply_format = ChatTemplate(api.template, name="test").reply_format
    hints = [reply_format.tool_calls.start_marker] if reply_format.tool_calls else []
    hints += [reply_format.reasoning.end] if reply_format.reasoning else []
    hints = [text for hint in hints for text in (hint, hint + "\n") if hint]
    walker = Walker(api.engine.specs[-1].constraint, CONTROLS, hints)
    return next(reply for reply in map(walker.walk, range(200)) if reply is not None)


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_a_name_with_a_space_is_called_or_refused(api: Api, path: Path) -> None:
    body = body_of("12-tool-name-with-space")
    answer = post(api, path.stem, body)
    if answer.status_code == 400 and "does not show how" in answer.text:
        pytest.skip("the template shows no calls")
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert error["param"] == "tools[0].function.name"
        assert '"Read File"' in error["message"]
        return
    reply = write_reply(api)
    assert {name for name, _ in calls_of(post(api, path.stem, body, reply))} == {"Read File"}


def test_an_argument_that_begins_with_a_dollar_is_called_in_python(api: Api) -> None:
    body = body_of("16-pythonic-dollar-argument")
    reply = '<|tool_call_start|>[query($filter="a eq 1", $top=5)]<|tool_call_end|>'
    answer = post(api, "LFM2-8B-A1B", body, reply)
    assert calls_of(answer) == [("query", {"$filter": "a eq 1", "$top": 5})]
    if api.engine.specs[-1].constraint:
        assert "$filter" in api.engine.specs[-1].constraint


WANTED = {
    "google-gemma-4-31B-it": "<|tool_call>call:search{body:{@timestamp:1,src/a.py:2}}<tool_call|>",
    "LFM2-8B-A1B": '<|tool_call_start|>[search(start-date="x")]<|tool_call_end|>',
    "Qwen3-Coder": CODER.format("search", parameter("a/b", "x")),
}
NAMES = ("@type", "a/b", "file path", "größe", "1st", "$filter", "start-date", "x:y", "filter[id]")


@pytest.mark.parametrize("name", WANTED)
def test_any_argument_name_may_be_written_without_a_force(api: Api, name: str) -> None:
    answer = post(api, name, body_of("17-argument-names-auto"), WANTED[name])
    assert calls_of(answer)
    assert walker_of(api).taken_of(WANTED[name]) == WANTED[name]


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_listed_arguments_are_written_in_every_format(api: Api, path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in NAMES},
        "required": NAMES,
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "search", "parameters": parameters}}
    named = {"type": "function", "function": {"name": "search"}}
    body = {"messages": [{"role": "user", "content": "go"}], "tools": [tool]}
    answer = post(api, path.stem, {**body, "tool_choice": named})
    if answer.status_code == 400 and "does not show how" in answer.text:
        pytest.skip("the template shows no calls")
    forced = write_reply(api)
    calls = calls_of(post(api, path.stem, body, forced))
    assert calls, forced
    assert all(sorted(arguments) == sorted(NAMES) for _, arguments in calls), forced
    if api.engine.specs[-1].constraint:
        assert walker_of(api).taken_of(forced) == forced


@pytest.mark.parametrize("field", ["response_format", "tools"])
def test_a_long_chain_of_references_is_refused_with_the_bound(api: Api, field: str) -> None:
    num = 3000
    defs: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}},
            "required": ["a"],
        }
        for i in range(num)
    }
    defs[f"d{num}"] = {"type": "string"}
    schema = {"$defs": defs, "$ref": "#/$defs/d0"}
    where = "response_format.json_schema.schema"
    wanted = {"name": "x", "schema": schema, "strict": True}
    fields: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": wanted}}
    if field == "tools":
        function = {"name": "f", "parameters": schema, "strict": True}
        where, fields = "tools[0].function.parameters", {"tools": [{"function": function}]}
        fields["tools"][0]["type"] = "function"
    answer = api.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == where
    assert "1000 levels" in answer.json()["error"]["message"]


def test_what_cannot_be_held_is_said_without_the_grammar(api: Api) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for name in ("Qwen3-Coder", "Qwen-Qwen3-0.6B", "google-gemma-4-31B-it"):
        body = {"messages": [{"role": "user", "content": "go"}], "tools": [tool]}
        answer = post(api, name, {**body, "tool_choice": "required"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tools[0].function.parameters")
        assert not any(word in answer.text for word in ("%json", "llguidance", "^^", "::="))

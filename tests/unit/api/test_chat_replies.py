"""Reasoning and tool calls in chat answers and streams, and what requests say about them."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.fakes.engine import Step, delta, finished
from tests.unit.api.conftest import Api
from tests.unit.api.events import read_events
from tests.unit.chat.reply_samples import make_tool
from tests.unit.chat.reply_templates import calls, template

from milepost.config import Settings
from milepost.config.chat import ChatSettings
from milepost.protocol.messages import TokenLogprob

TOOLS = [make_tool("read", path={"type": "string"})]
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
REPLY = f"<think>\nLook.\n</think>\n\nI look.\n{CALL}"
LOGPROB = TokenLogprob(token=97, token_bytes=b"a", logprob=-0.5)


def ask(api: Api, text: str, *, reason: str = "eos", **fields: Any) -> Any:
    """Return the only choice of an answer to a request with tools."""
    answer = api.chat(delta(text), finished(reason), **{"tools": TOOLS, **fields})
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json(), strict=True)
    return answer.json()["choices"][0]


def stream(api: Api, *texts: str, reason: str = "eos", **fields: Any) -> list[Any]:
    """Return the choices of all chunks that come with the texts."""
    steps: list[Step] = [*map(delta, texts), finished(reason)]
    events = read_events(api.chat(*steps, stream=True, **{"tools": TOOLS, **fields}))
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event, strict=True)
    return [event["choices"][0] for event in events[:-1]]


def test_json_that_calls_a_tool_which_is_not_allowed_stays_text(api: Api) -> None:
    api.template = template(
        calls("""'{"name": "' ~ NAME ~ '", "parameters": ' ~ ARGUMENTS ~ '}'""")
    )
    reply = '{"name": "read", "parameters": {"path": "a.py"}}'
    assert ask(api, reply)["message"]["tool_calls"]
    allowed = [{"type": "function", "function": {"name": "write"}}]
    choice = ask(
        api,
        reply,
        tools=[*TOOLS, make_tool("write")],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}},
    )
    assert choice["message"].get("tool_calls") is None
    assert choice["message"]["content"] == reply


def test_a_message_has_reasoning_content_and_calls(api: Api) -> None:
    choice = ask(api, REPLY)

    call = choice["message"]["tool_calls"][0]
    assert call.pop("id").startswith("call_")
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Look.",
        "tool_calls": [
            {"type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
        ],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_content_is_null_where_there_are_only_calls(api: Api) -> None:
    message = ask(api, CALL + CALL)["message"]

    assert message["content"] is None
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_a_stream_has_a_chunk_for_each_kind(api: Api) -> None:
    cut = CALL.index('"path"')
    choices = stream(api, "<thi", "nk>Look.</think>I look.", CALL[:cut], CALL[cut:])

    deltas = [choice["delta"] for choice in choices]
    call_id = deltas[3]["tool_calls"][0].pop("id")
    assert call_id.startswith("call_")
    assert deltas == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "Look."},
        {"content": "I look."},
        {
            "tool_calls": [
                {"index": 0, "type": "function", "function": {"name": "read", "arguments": "{"}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '"path": "a.py"}'}}]},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["tool_calls"]


def test_several_calls_in_one_step_are_entries_of_one_chunk(api: Api) -> None:
    entries = stream(api, CALL + CALL)[1]["delta"]["tool_calls"]

    assert [entry["index"] for entry in entries] == [0, 1]
    assert {entry["function"]["arguments"] for entry in entries} == {'{"path": "a.py"}'}


def test_a_truncated_call_is_surfaced(api: Api) -> None:
    choice = ask(api, CALL[: CALL.index(".py")], reason="limit")

    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"path": "a'


def test_text_that_was_held_back_comes_before_the_end(api: Api) -> None:
    deltas = [choice["delta"] for choice in stream(api, "a <tool")]

    assert deltas[1:] == [{"content": "a"}, {"content": " <tool"}, {}]


@pytest.mark.parametrize(
    "fields",
    [{"tools": None}, {"tool_choice": "none"}, {"parse_tool_calls": False}],
    ids=lambda fields: next(iter(fields)),
)
def test_calls_are_text_where_none_can_be(api: Api, fields: dict[str, Any]) -> None:
    choice = ask(api, CALL, **fields)

    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert choice["finish_reason"] == "stop"


def test_reasoning_that_the_prompt_begins(api: Api) -> None:
    api.template = api.template.replace(
        "<|im_start|>assistant\\n'", "<|im_start|>assistant\\n<think>\\n'"
    )

    message = ask(api, "Look.\n</think>\n\nYes.")["message"]

    assert (message["reasoning_content"], message["content"]) == ("Look.", "Yes.")


@pytest.mark.parametrize("place", ["auto", "deepseek"])
def test_reasoning_is_apart(api: Api, place: str) -> None:
    message = ask(api, "<think>Hm.</think>Yes.", reasoning_format=place)["message"]

    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")


def test_reasoning_stays_in_the_content_with_none(api: Api) -> None:
    choice = ask(api, REPLY, reasoning_format="none")

    assert choice["message"]["content"] == "<think>\nLook.\n</think>\n\nI look."
    assert "reasoning_content" not in choice["message"]
    assert choice["finish_reason"] == "tool_calls"


def test_reasoning_is_in_both_places_with_deepseek_legacy(api: Api) -> None:
    message = ask(api, "<think>Hm.</think>Yes.", reasoning_format="deepseek-legacy")["message"]

    assert message["reasoning_content"] == "Hm."
    assert message["content"] == "<think>Hm.</think>Yes."


def test_the_server_decides_where_the_request_does_not(api: Api) -> None:
    api.settings = Settings(chat=ChatSettings(reasoning_format="none"))

    assert ask(api, "<think>Hm.</think>Yes.")["message"]["content"] == "<think>Hm.</think>Yes."


def test_an_unknown_reasoning_format_is_refused(api: Api) -> None:
    answer = api.chat(reasoning_format="qwen")

    assert answer.status_code == 400
    assert "'reasoning_format' must be one of auto, none, deepseek" in answer.text


def test_parsing_can_be_switched_off(api: Api) -> None:
    api.settings = Settings(chat=ChatSettings(skip_chat_parsing=True))

    assert ask(api, REPLY)["message"] == {"role": "assistant", "content": REPLY}


def test_logprobs_go_with_the_first_chunk_of_their_step(api: Api) -> None:
    steps = (delta(REPLY, logprobs=(LOGPROB,)), delta("", logprobs=(LOGPROB,)), finished())

    answer = api.chat(*steps, stream=True, logprobs=True, tools=TOOLS)
    choices = [event["choices"][0] for event in read_events(answer)[1:-1]]

    counts = [len((choice.get("logprobs") or {"content": []})["content"]) for choice in choices]
    assert counts == [1, 0, 0, 1, 0]
    assert "reasoning_content" in choices[0]["delta"]


def test_what_is_not_well_formed_is_noted_in_the_log_only(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "milepost.api.openai.chat"):
        choice = ask(api, "<tool_call>secret</tool_call>")

    assert choice["message"]["content"] == "<tool_call>secret</tool_call>"
    assert choice["finish_reason"] == "stop"
    assert "chatcmpl-" in caplog.text
    assert "a tool call is not well formed" in caplog.text
    assert "secret" not in caplog.text


def test_choices_are_read_apart(api: Api) -> None:
    steps = [delta("<think>a", 0), delta("<th", 1), delta("</think>b", 0), delta("ink>c", 1)]
    ends = [finished(choice=0), finished(choice=1)]

    answer = api.chat(*steps, *ends, n=2).json()

    first, second = (choice["message"] for choice in answer["choices"])
    assert (first["reasoning_content"], first["content"]) == ("a", "b")
    assert (second["reasoning_content"], second["content"]) == ("c", "")


def test_control_tokens_of_markers_are_shown(api: Api) -> None:
    marker = "<|endoftext|>"
    api.template = api.template.replace("<tool_call>", marker)

    api.chat(delta("x"), finished(), tools=TOOLS)
    api.chat(delta("x"), finished())

    assert [spec.shown_tokens for spec in api.engine.specs] == [(256,), ()]


def test_no_reply_is_an_error_of_the_server(api: Api) -> None:
    samples = st.sampled_from([*REPLY.split(" "), CALL[:30], CALL])
    texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | samples)

    with api.connection() as send:

        @settings(max_examples=60, deadline=None, derandomize=True, database=None)
        @given(pieces=texts, reason=st.sampled_from(["eos", "limit"]))
        def check(pieces: list[str], reason: str) -> None:
            api.engine.steps = (*map(delta, pieces), finished(reason))
            body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
            whole = send("POST", "/v1/chat/completions", json=body)
            chunks = send("POST", "/v1/chat/completions", json={**body, "stream": True})
            assert whole.status_code == 200, whole.text
            choice = whole.json()["choices"][0]
            check_same(choice, [event["choices"][0] for event in read_events(chunks)[:-1]])

        check()


def check_same(choice: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    """Check that chunks add up to the answer in one piece."""
    deltas = [chunk["delta"] for chunk in chunks]
    arguments: dict[int, str] = {}
    for entry in itertools.chain(*(added.get("tool_calls", ()) for added in deltas)):
        index = entry["index"]
        arguments[index] = arguments.get(index, "") + entry["function"]["arguments"]
    message = choice["message"]
    calls = message.get("tool_calls", ())
    assert [call["function"]["arguments"] for call in calls] == list(arguments.values())
    for key in ("content", "reasoning_content"):
        assert "".join(added.get(key) or "" for added in deltas) == (message.get(key) or "")
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]

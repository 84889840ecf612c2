"""Which conversations are accepted, what becomes of them, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milepost.api.openai.messages import parse_conversation
from milepost.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def call(arguments: Any = "{}", **changes: Any) -> dict[str, Any]:
    """Return a tool call."""
    function = {"name": "read", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function, **changes}


def assistant(*calls: Any, **fields: Any) -> dict[str, Any]:
    """Return an assistant message with tool calls."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def test_plain_messages_come_through_in_their_order() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "c"},
    ]
    conversation = parse_conversation(messages)
    assert conversation.messages == messages
    assert conversation.tools is None
    assert conversation.documents is None


def test_known_fields_are_kept_and_others_left_out() -> None:
    message = {
        "role": "tool",
        "content": "x",
        "tool_call_id": "call_1",
        "name": "read",
        "reasoning_content": None,
        "refusal": None,
        "cache_control": {"type": "ephemeral"},
    }
    (parsed,) = parse_conversation([message]).messages
    assert parsed == {"role": "tool", "content": "x", "tool_call_id": "call_1", "name": "read"}


def test_reasoning_is_kept() -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert parse_conversation([message]).messages == [message]


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = parse_conversation([{"role": "user", "content": parts}]).messages
    assert message["content"] == "a\nb"


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_beside_tool_calls_is_an_empty_string(content: object) -> None:
    (message,) = parse_conversation([assistant(call(), content=content)]).messages
    assert message["content"] == ""


def test_arguments_become_objects_with_their_keys_in_order() -> None:
    text = '{"z": 1, "a": {"y": 2.0, "b": "ü"}}'
    conversation = parse_conversation([assistant(call(text))])
    function = conversation.messages[0]["tool_calls"][0]["function"]
    assert json.dumps(function["arguments"], ensure_ascii=False) == text
    assert conversation.argument_texts == {(0, 0): text}


@pytest.mark.parametrize(
    ("sent", "given", "text"),
    [
        ({"b": 1, "a": 2}, {"b": 1, "a": 2}, '{"b": 1, "a": 2}'),
        ("", {}, "{}"),
        (None, {}, "{}"),
        ('{"path": "a', '{"path": "a', '{"path": "a'),
        ("[" * 100_000, "[" * 100_000, "[" * 100_000),
    ],
    ids=["object", "empty", "null", "cut off", "nested too deeply"],
)
def test_arguments_in_other_shapes(sent: Any, given: Any, text: str) -> None:
    conversation = parse_conversation([assistant(call(sent))])
    assert conversation.messages[0]["tool_calls"][0]["function"]["arguments"] == given
    assert conversation.argument_texts[0, 0] == text


def test_the_request_is_not_changed() -> None:
    messages = [USER, assistant(call('{"a": 1}'))]
    before = json.dumps(messages)
    parse_conversation(messages)
    assert json.dumps(messages) == before


def test_tools_keep_what_describes_them() -> None:
    tool = {
        "type": "function",
        "function": {"strict": True, "name": "f", "parameters": {"type": "object", "b": 1, "a": 2}},
    }
    conversation = parse_conversation([USER], [tool, {**TOOL, "function": {"name": "g"}}])
    assert conversation.tools == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "",
                "parameters": {"type": "object", "b": 1, "a": 2},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "g",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]


@pytest.mark.parametrize(
    "fields", [{}, {"tool_calls": []}, {"tool_calls": None, "content": None}, {"content": []}]
)
def test_a_reply_may_be_empty(fields: dict[str, Any]) -> None:
    (_, reply, _) = parse_conversation([USER, {"role": "assistant", **fields}, USER]).messages
    assert reply == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("function", [{"name": ""}, {"name": None}, {}])
def test_a_call_in_a_history_may_have_no_name(function: dict[str, Any]) -> None:
    (reply,) = parse_conversation([assistant(call(function=function))]).messages
    assert reply["tool_calls"][0]["function"]["name"] == ""


def test_empty_tools_are_no_tools() -> None:
    assert parse_conversation([USER], [], []).tools is None


def test_documents_come_through() -> None:
    documents = [{"title": "a", "text": "b"}]
    assert parse_conversation([USER], documents=documents).documents == documents


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty"),
        ({"role": "user"}, "messages must be a list of messages, not"),
        ([USER, "hi"], 'messages[1] must be an object with role and content, not "hi"'),
        ([{"content": "hi"}], "messages[0].role is missing; use one of system, developer"),
        ([USER, {"role": "bot", "content": ""}], 'messages[1].role is "bot"; use one of'),
        ([{"role": ["user"], "content": ""}], 'messages[0].role is ["user"]; use one of'),
        ([{"role": "user"}], "messages[0].content is missing"),
        ([{"role": "user", "content": 7}], "messages[0].content must be a string or a list"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0] must be an object"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text must be a string, not null",
        ),
        (
            [{"role": "user", "content": [{"type": "poem", "text": ""}]}],
            'messages[0].content[0].type is "poem"; use',
        ),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type is missing"),
        ([{**USER, "name": 7}], "messages[0].name must be a string or left out, not 7"),
        ([{**USER, "tool_calls": [call()]}], "messages[0].tool_calls belongs into assistant"),
        ([assistant() | {"tool_calls": "x"}], 'messages[0].tool_calls must be a list, not "x"'),
        ([assistant("x")], "messages[0].tool_calls[0] must be an object with a function"),
        ([assistant(call(), call(type="x"))], 'messages[0].tool_calls[1].type is "x"'),
        (
            [assistant(call(function={"name": 7}))],
            "messages[0].tool_calls[0].function.name must be a string, not 7",
        ),
        ([assistant(call(7))], "messages[0].tool_calls[0].function.arguments must be JSON text"),
        ([assistant(call(id=7))], "messages[0].tool_calls[0].id must be a string or left out"),
    ],
)
def test_bad_messages_get_one_sentence(messages: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_conversation(messages)
    assert said in str(raised.value)
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [("image", "'image_url' parts"), ("file", "send their text"), ("video_url", "some of their")],
)
def test_foreign_parts_are_refused_by_name(kind: str, way_out: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "data:…"}}]
    with pytest.raises(InvalidRequest) as raised:
        parse_conversation([{"role": "user", "content": parts}])
    assert f'messages[0].content[1] has type "{kind}"; ' in str(raised.value)
    assert way_out in str(raised.value)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({}, "tools must be a list of tools"),
        ([TOOL, "x"], 'tools[1] must be an object with a function object, not "x"'),
        ([{"function": {"name": "f"}}], "tools[0].type is missing"),
        ([{**TOOL, "type": "web_search"}], 'tools[0].type is "web_search"; only'),
        ([{**TOOL, "function": {}}], "tools[0].function.name must be a non-empty string"),
        ([{**TOOL, "function": {"name": "f", "parameters": 1}}], "parameters must be a JSON sch"),
        ([{**TOOL, "function": {"name": "f", "description": 1}}], "description must be a string"),
    ],
)
def test_bad_tools_get_one_sentence(tools: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_conversation([USER], tools)
    assert said in str(raised.value)
    assert raised.value.param == "tools"


def test_bad_documents_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="documents must be a list, not 7"):
        parse_conversation([USER], documents=7)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_conversation([{"role": "x" * 10_000, "content": ""}])
    assert len(str(raised.value)) < 250

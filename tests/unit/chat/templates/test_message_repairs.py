"""No history is refused for ever, and no text of one is lost: whatever the template makes of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.published import TEMPLATE_PATHS, read_template
from tests.unit.chat import families

from milepost.api.openai.messages import parse_conversation
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.message_repairs import repair_messages
from milepost.chat.templates.report import describe_consequences
from milepost.chat.templates.template import ChatTemplate

SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    {"type": "object"},
    {"properties": {"a": {}, "b": {"type": ["string", "null"]}, "c": {"type": "array"}}},
    {"type": "object", "properties": {"d": {"type": "object"}, "e": {"enum": ["x", 1]}}},
)
TOOLS = [
    {"type": "function", "function": {"name": f"tool{i}", "parameters": schema}}
    for i, schema in enumerate(SCHEMAS)
]
ALTERNATING = """\
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Users and replies must alternate') }}
{%- endif -%}
<{{ m.role }}>{{ m.content }}
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}"""
# As firefunction v2 reads its tools.
FUNCTIONS = "Functions:\n{{ '' + functions }}\n" + BUILTIN_TEMPLATES["chatml"]
# As Command R+ and Seed-OSS describe theirs.
SIGNATURES = (
    "{% for tool in tools %}{{ tool.function.name }}("
    "{% for name, each in tool.function.parameters.properties.items() %}"
    "{{ name }}: {{ {'string': 'str', 'array': 'list', 'object': 'dict'}[each.type] + '; '"
    " + each.description }}"
    "{% endfor %}){% endfor %}" + families.CHATML_TOOLS
)


def system(text: str, role: str = "system") -> dict[str, Any]:
    """Return a system message."""
    return {"role": role, "content": text}


def user(text: str) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text}


def reply(text: str | None, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a reply."""
    message = {"role": "assistant", "content": text, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(number: int, arguments: str = "", name: str = "tool0") -> dict[str, Any]:
    """Return a call with a text of its own."""
    text = arguments or json.dumps({"path": f"qqvalue{number}"})
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def result(number: int) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "content": f"qqresult{number}", "tool_call_id": f"call_{number}"}


def without_id(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the ids of calls."""
    kept = {key: value for key, value in message.items() if key != "tool_call_id"}
    if "tool_calls" in message:
        kept["tool_calls"] = [{**each, "id": None} for each in message["tool_calls"]]
    return kept


S, S2, U, U2, U3 = system("qqs1"), system("qqs2"), user("qqu1"), user("qqu2"), user("qqu3")
A, A2 = reply("qqa1"), reply("qqa2")
ONE, OTHER, BOTH = reply(None, call(0)), reply(None, call(1)), reply(None, call(0), call(1))
WORDS = reply("qqwords", call(0))
R, R2 = result(0), result(1)
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "as usual": [S, U, A, U2],
    "system alone": [S],
    "developer": [system("qqs1", "developer"), U],
    "system and developer": [S, system("qqs2", "developer"), U],
    "two systems": [S, S2, U],
    "system in the middle": [S, U, A, S2, U2],
    "the only system in the middle": [U, A, S2, U2],
    "systems all over": [S, U, A, S2, U2, A2, system("qqs3"), U3],
    "system before a reply": [S, U, S2, A, U2],
    "system at the end": [U, A, U2, S2],
    "developer in the middle": [S, U, A, system("qqs2", "developer"), U2],
    "users": [U, U2, A, U3],
    "users at the end": [U, A, U2, U3],
    "replies": [U, A, A2, U2],
    "reply first": [A, U],
    "reply after system": [S, A, U],
    "reply last": [U, A],
    "reply alone": [A],
    "user after result": [S, U, ONE, R, U2],
    "user after call": [U, ONE, U2],
    "call and words": [S, U, WORDS, R, U2, A],
    "call, words and reasoning": [U, {**WORDS, "reasoning_content": "thoughts"}, R],
    "loop of an agent": [S, U, ONE, R, OTHER, R2],
    "calls": [S, U, BOTH, R, R2],
    "calls and an answer": [U, BOTH, R, R2, A, U2],
    "results in another order": [U, BOTH, R2, R],
    "results are missing": [U, reply(None, call(0), call(1), call(2)), R, U2],
    "calls in two replies": [U, ONE, OTHER, R, R2],
    "result without call": [U, R, U2],
    "result first": [R, U],
    "no id of a result": [U, ONE, without_id(R), A],
    "no ids": [U, without_id(ONE), without_id(R), A],
    "function": [U, ONE, {"role": "function", "name": "tool0", "content": "qqresult0"}, A],
    "empty reply": [U, reply(""), U2],
    "null reply": [U, reply(None), U2],
    "no name": [U, reply(None, call(0, name="")), R, A],
    "empty user": [user(""), A, U2],
    "empty result": [U, ONE, {**R, "content": ""}, A, U2],
    "half arguments": [U, reply(None, call(0, '{"path": "qqvalue0')), R, A],
    "list as arguments": [U, reply(None, call(0, '["qqvalue0"]')), R, A],
    "system among results": [U, BOTH, R, S2, R2, A],
    "user among results": [U, BOTH, R, U2, R2, A],
    "system after result": [S, U, ONE, R, S2, A, U2],
}
# What templates leave out on purpose.
LEFT_OUT = {
    ("openai-gpt-oss-120b", "call and words"): {"qqwords"},  # as reasoning of a turn that is over
}


def sources() -> Iterator[tuple[str, str]]:
    """Yield all templates by name."""
    yield from ((path.stem, path.read_text("utf-8")) for path in TEMPLATE_PATHS)
    yield from ((f"built-in {name}", source) for name, source in BUILTIN_TEMPLATES.items())
    yield from (("alternating", ALTERNATING), ("functions", FUNCTIONS), ("signatures", SIGNATURES))
    yield from (("no system", families.NO_SYSTEM), ("inst", families.INST_ALTERNATING))


@cache
def make(source: str) -> ChatTemplate:
    """Return a template."""
    return ChatTemplate(source, name="test")


def render(source: str, *messages: dict[str, Any], tools: Any = None) -> str:
    """Return a prompt."""
    return make(source).render(parse_conversation(list(messages), tools)).text


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.parametrize(("name", "source"), list(sources()), ids=[each[0] for each in sources()])
def test_all_texts_of_any_history_are_in_the_prompt(name: str, source: str, tools: Any) -> None:
    lost = {}
    for kind, history in HISTORIES.items():
        texts = set(re.findall(r"qq\w+", json.dumps(history)))
        missing = {text for text in texts if text not in render(source, *history, tools=tools)}
        if missing - LEFT_OUT.get((name, kind), set()):
            lost[kind] = missing
    assert lost == {}


@pytest.mark.parametrize(("name", "source"), list(sources()), ids=[each[0] for each in sources()])
def test_a_history_stays_as_it_is_when_it_grows(name: str, source: str) -> None:
    template = make(source)
    if template.profile.repairs is None:
        return
    for kind, history in HISTORIES.items():
        if kind in ("results in another order", "results are missing"):
            continue  # calls are put where their results are
        whole = [str(each) for each in repaired(template, history)]
        for num in range(2, len(history)):
            part = [str(each) for each in repaired(template, history[:num])]
            *before, _ = part
            assert whole[: len(before)] == before, (name, kind, num)


def repaired(template: ChatTemplate, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that a template is given."""
    repairs, calls = template.profile.repairs, template.reply_format.tool_calls
    assert repairs is not None
    return repair_messages(parse_conversation(history), repairs, calls).messages


def test_roles_alternate_for_a_template_that_insists() -> None:
    assert render(ALTERNATING, S, U, U2, A, S2, U3) == (
        "<user>qqs1\n\nqqu1\n\nqqu2<assistant>qqa1<user><system>\nqqs2\n</system>\n\nqqu3<assistant>"
    )


def test_gemma_gets_its_system_message_from_the_user() -> None:
    assert render(read_template("google-gemma-2-2b-it"), S, U) == (
        "<start_of_turn>user\nqqs1\n\nqqu1<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_later_system_message_stays_where_it_was_said() -> None:
    text = render(read_template("Qwen3.5-4B"), S, U, A, S2, U2)
    assert "<|im_start|>user\n<system>\nqqs2\n</system><|im_end|>\n<|im_start|>user\nqqu2" in text


def test_each_of_several_calls_stands_before_its_result() -> None:
    text = render(read_template("meta-llama-Llama-3.1-8B-Instruct"), U, BOTH, R, R2, tools=TOOLS)
    places = [text.index(each) for each in ("qqvalue0", "qqresult0", "qqvalue1", "qqresult1")]
    assert places == sorted(places)
    assert text.count("ipython<|end_header_id|>") == 2


def test_words_beside_a_call_are_written_as_the_model_writes_them() -> None:
    source = read_template("NousResearch-Hermes-3-Llama-3.1-8B-tool_use")
    assert (
        "<|im_start|>assistant\nqqwords\n"
        '<tool_call>\n{"name": "tool0", "arguments": {"path": "qqvalue0"}}\n</tool_call><|im_end|>'
    ) in render(source, U, WORDS, R, tools=TOOLS[:1])


def test_a_developer_message_counts_as_one_only_where_it_is_shown() -> None:
    drops = "{% if m.role == 'developer' %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}"
    shows = "{% if m.role == 'developer' %}<{{ m.role }}>{{ m.content }}{% else %}{% endif %}"
    for body, traits in ((drops, False), (shows, True)):
        source = f"{{% for m in messages %}}{body}{{% endfor %}}"
        assert make(source).profile.traits.knows_developer is traits
    loop = f"{{% for m in messages %}}{drops}{{% endfor %}}"
    assert render(loop, system("qqs1", "developer"), U) == "<system>qqs1<user>qqu1"


@pytest.mark.parametrize("merges", [False, True])
def test_words_go_into_thinking_only_where_a_template_merges_them(merges: bool) -> None:
    words = "" if merges else "{{ m.content }}"
    source = (
        "{{ tools | tojson }}{% for m in messages %}{% if m.tool_calls %}({{ m.thinking }})"
        + words
        + "["
        "{{ m.tool_calls[0].function.arguments | tojson }}]"
        "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    )
    template = make(source)
    assert template.profile.traits.merges_thinking is merges
    text = render(source, U, {**WORDS, "reasoning_content": "thoughts"}, R, tools=TOOLS)
    assert ("(thoughts\n\nqqwords)" if merges else "(thoughts)qqwords") in text


def test_functions_are_given_to_a_template_that_asks_for_them() -> None:
    assert render(FUNCTIONS, U).startswith("Functions:\n\n")
    listed = render(FUNCTIONS, U, tools=TOOLS[:1]).partition("Functions:\n")[2]
    assert json.JSONDecoder().raw_decode(listed)[0][0]["name"] == "tool0"


def test_what_a_schema_leaves_out_is_filled_in_where_a_template_needs_it() -> None:
    text = render(SIGNATURES, U, tools=TOOLS)
    assert "tool1()tool2(a: str; b: str; c: list; )" in text


def test_what_is_done_to_messages_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(ALTERNATING, name="test")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            template.render(parse_conversation([U, U2]))
    (record,) = caplog.records
    assert record.getMessage() == (
        "chat template of test: messages of a request are not sent to the model as they are; "
        "`milepost probe` says why"
    )
    assert "User messages that follow each other become one." in describe_consequences(
        template.profile
    )


def test_a_template_that_cannot_render_says_so() -> None:
    broken = make("{{ nothing.at.all }}")
    assert describe_consequences(broken.profile) == [
        "This template cannot render: the chat template of test failed in line 1: "
        "UndefinedError: 'nothing' is undefined"
    ]

"""Models whose templates leave tools, calls or results out see them in texts all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab
from tests.published import read_template
from tests.unit.chat import families
from tests.unit.chat.reply_samples import TOOLS, merge
from tests.unit.chat.reply_templates import HERMES
from tests.unit.chat.reply_templates import template as make_source

from milepost.api.openai.messages import parse_conversation
from milepost.chat.formats.braced_calls import BracedBody
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.named_json_calls import NamedJsonBody
from milepost.chat.formats.pythonic_calls import PythonicBody
from milepost.chat.formats.reply_events import CallArguments, CallStart
from milepost.chat.formats.reply_format import Affix, ReplyFormat, ToolCallFormat, WrittenCall
from milepost.chat.formats.tagged_calls import TaggedBody
from milepost.chat.prompts.boundaries import BoundaryFinder
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet
from milepost.chat.templates.tool_fallback import ToolFallback

PLAIN = BUILTIN_TEMPLATES["chatml"]
# A system message of its own, as SmolLM2's and Qwen 2.5's.
DEFAULTING = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Mile.<|im_end|>\n{% endif %}"
    + PLAIN
)
# The same, but it takes words out of what it is given, as SmolLM3's.
REWRITING = DEFAULTING.replace("message.content", "message.content.replace('Mile', '')")
STRICT = (  # no system messages, and users and replies in turn, as Gemma 2's
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Users and replies must alternate') }}{% endif %}"
    "<turn>{{ m.role }}\n{{ m.content }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
SHOWS_CALLS = make_source(HERMES).replace("tools", "nothing")

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Read it."}
ANSWER = {"role": "assistant", "content": "Done."}
NEXT_USER = {"role": "user", "content": "Thanks."}


def call(number: int, arguments: str = '{"path":"a.py"}') -> dict[str, Any]:
    """Return a call with an id of its own."""
    function = {"name": "read", "arguments": arguments}
    return {"id": f"abcdefgh{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    """Return a reply with calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(number: int, content: str = "one line") -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "content": content}


def make(source: str) -> ChatTemplate:
    """Return a template without control tokens."""
    return ChatTemplate(source, name="test")


def render(source: str, *messages: dict[str, Any], tools: Any = TOOLS) -> str:
    """Return a prompt."""
    return make(source).render(parse_conversation(list(messages), tools)).text


def description(source: str) -> str:
    """Return how tools are described where there is a system message."""
    text = render(source, SYSTEM, USER)
    return text.partition("Be brief.\n\n")[2].partition("<|im_end|>")[0]


def test_tools_and_the_form_of_calls_stand_after_the_system_message() -> None:
    text = render(PLAIN, SYSTEM, USER)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    listed = text.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in listed] == [
        {"name": name, "description": "", "parameters": tool["function"]["parameters"]}
        for name, tool in zip(("read", "edit", "list_files"), TOOLS, strict=True)
    ]
    example = '{"name": "TOOL_NAME", "arguments": {"ARGUMENT_NAME": "VALUE"}}'
    assert f"<tool_call>\n{example}\n</tool_call>\n\n" in text
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\nRead it.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_is_added_with_what_the_template_says_without_one() -> None:
    described = description(PLAIN)
    assert render(PLAIN, USER).startswith(f"<|im_start|>system\n{described}<|im_end|>\n")
    added = f"<|im_start|>system\nYou are Mile.\n\n{described}<|im_end|>\n<|im_start|>user\n"
    assert render(DEFAULTING, USER).startswith(added)


def test_a_default_that_could_not_be_repeated_stays_and_tools_go_to_the_user() -> None:
    text = render(REWRITING, USER)
    assert text.startswith("<|im_start|>system\nYou are Mile.<|im_end|>\n<|im_start|>user\n# Tools")
    assert "\n\nRead it.<|im_end|>\n" in text


def test_without_a_system_role_the_first_message_of_the_user_has_the_tools() -> None:
    text = render(STRICT, USER, ANSWER, NEXT_USER)
    assert text.startswith("<turn>user\n# Tools\n\n")
    assert text.count("# Tools") == 1
    assert "\n\nRead it.</turn>\n<turn>assistant\nDone.</turn>\n<turn>user\nThanks." in text


def test_calls_become_text_and_results_one_message_of_the_user() -> None:
    both = calling(call(0), call(1, '{"path": "b", "line": 1}'), content="I look.")
    text = render(PLAIN, SYSTEM, USER, both, result(0), result(1, "two"), ANSWER, NEXT_USER)
    assert text.partition("Read it.<|im_end|>\n")[2] == (
        "<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "read", "arguments": {"path":"a.py"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read", "arguments": {"path": "b", "line": 1}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\none line\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>\n"
        "<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_user_who_speaks_after_results_joins_them_only_where_roles_alternate() -> None:
    talk = [USER, calling(call(0)), result(0), NEXT_USER]
    written = "<tool_response>\none line\n</tool_response>"
    assert f"<turn>user\n{written}\nThanks.</turn>" in render(STRICT, *talk)
    assert f"{written}<|im_end|>\n<|im_start|>user\nThanks." in render(PLAIN, *talk)


def test_a_call_that_is_no_json_is_written_as_one() -> None:
    text = render(PLAIN, USER, calling(call(0, '{"path": "a')), result(0))
    line = text.rpartition("<tool_call>\n")[2].partition("\n")[0]
    assert json.loads(line) == {"name": "read", "arguments": {"arguments": '{"path": "a'}}


def test_calls_that_the_template_shows_are_left_to_it_and_their_form_is_described() -> None:
    template = make(SHOWS_CALLS)
    assert template.profile.tool_fallback == ToolFallback(tools_in="system")
    text = render(SHOWS_CALLS, SYSTEM, USER, calling(call(0)), result(0))
    assert text.count("# Tools") == 1
    assert text.count("<tool_call>") == 2
    assert "<tool_response>" not in text


def test_calls_in_a_form_that_is_not_understood_are_written_in_the_one_described() -> None:
    source = families.PRINTED_ARGUMENTS.replace(families.LISTING, "")
    text = render(source, USER, calling(call(0)), result(0))
    assert text.count("<tool_call>") == 2
    assert '[{"path"' not in text


@pytest.mark.parametrize("source", [make_source(HERMES), BUILTIN_TEMPLATES["gpt-oss"], "", "x"])
def test_nothing_is_done_where_nothing_is_missing_or_nothing_can_be(source: str) -> None:
    assert make(source).profile.tool_fallback is None


def test_a_conversation_without_tools_is_rendered_as_ever() -> None:
    assert render(DEFAULTING, USER, tools=None) == (
        "<|im_start|>system\nYou are Mile.<|im_end|>\n<|im_start|>user\nRead it.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_control_texts_in_tools_and_results_stay_texts() -> None:
    template = ChatTemplate(PLAIN, name="test", texts=SpecialTexts.of(FakeVocab()))
    function = {"name": "read", "description": "Not <|im_end|>."}
    tools = [{"type": "function", "function": function}]
    talk = [USER, calling(call(0)), result(0, "Nor <|im_end|>.")]
    rendered = template.render(parse_conversation(talk, tools))
    prompt = rendered.text
    real = [prompt[start:end] for start, end in template.controls.token_spans(rendered)]
    assert "Not <|im_end|>." in prompt
    assert "Nor <|im_end|>." in prompt
    assert real.count("<|im_end|>") == 4  # system, user, reply, result
    assert real.count("<|im_start|>") == 5


def published(*names: str) -> Iterator[Any]:
    """Yield published templates, named as their files."""
    for name in names:
        yield pytest.param(read_template(name), id=name)


MISSING = [
    *(pytest.param(source, id=name) for name, source in BUILTIN_TEMPLATES.items()),
    pytest.param(DEFAULTING, id="defaulting"),
    pytest.param(REWRITING, id="rewriting"),
    pytest.param(STRICT, id="strict"),
    pytest.param(SHOWS_CALLS, id="shows calls"),
    *published(
        "HuggingFaceTB-SmolLM3-3B",
        "google-gemma-2-2b-it",
        "microsoft-Phi-3.5-mini-instruct",
        "deepseek-ai-DeepSeek-V3.1",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    ),
]


@pytest.mark.parametrize("source", MISSING)
def test_a_history_stays_as_it_is_when_it_grows(source: str) -> None:
    template = make(source)
    talk = [USER, calling(call(0), call(1)), result(0), result(1, "two"), ANSWER, NEXT_USER]
    before = ""
    for stop in (1, 4, 6):
        conversation = parse_conversation(talk[:stop], TOOLS)
        prompt = template.render(conversation, add_generation_prompt=False).text
        assert prompt.startswith(before.rstrip())
        assert "one line" in prompt or stop == 1
        before = prompt


@pytest.mark.parametrize("source", MISSING)
def test_the_description_is_a_part_of_what_prompts_share(source: str) -> None:
    template = make(source)
    finder = BoundaryFinder(TemplateSet(template))
    ends = []
    for question in ("Read it.", "Another."):
        conversation = parse_conversation([{"role": "user", "content": question}], TOOLS)
        prompt = template.render(conversation)
        found = finder.find_boundaries(conversation, prompt)
        ends += [
            prompt.text[: each.offset] for each in found.boundaries if each.kind == "system_end"
        ]
    assert ends[0] == ends[1]
    assert "list_files" in ends[0]


FORMATS = [
    ToolCallFormat(JsonBody(), call=Affix("<tool_call>", "</tool_call>")),
    ToolCallFormat(JsonBody("tool", "parameters", wrapper_key="function"), call=Affix("<c>")),
    ToolCallFormat(JsonBody(in_list=True, id_key="id"), Affix("[CALLS]")),
    ToolCallFormat(JsonBody(arguments_are_text=True), call=Affix("<c>", "</c>")),
    ToolCallFormat(NamedJsonBody(name_end="<sep>"), Affix("<all>", "</all>"), Affix("<c>", "</c>")),
    ToolCallFormat(NamedJsonBody("f:", "\n```json\n", arguments_end="```"), call=Affix("<c>")),
    ToolCallFormat(
        TaggedBody(
            "<function=", ">\n", "<parameter=", ">\n", "", "\n</parameter>\n", "</function>"
        ),
        call=Affix("<c>", "</c>"),
    ),
    ToolCallFormat(PythonicBody(), Affix("<calls>", "</calls>")),
    ToolCallFormat(BracedBody(), call=Affix("<call>", "</call>")),
]
ARGUMENTS = [
    {"path": 'a "b"\n\\', "line": -3},
    {
        "path": "é",
        "text": " two\nlines ",
        "ranges": [1, 2],
        "options": {"x": [True, None]},
        "dry": False,
    },
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form.body).__name__)
def test_written_calls_are_read_as_they_were(form: ToolCallFormat) -> None:
    assert not form.body.reads_whole_reply
    names = ("read", "edit")
    calls = [
        WrittenCall(name, arguments, json.dumps(arguments, ensure_ascii=False), f"id{name}")
        for name, arguments in zip(names, ARGUMENTS, strict=True)
    ]
    parser = ReplyParser(ReplyFormat(tool_calls=form), tools=TOOLS)
    events = merge([*parser.feed(form.write_calls(calls)), *parser.finish(is_truncated=False)])
    read = [json.loads(event.text) for event in events if isinstance(event, CallArguments)]
    assert [event.name for event in events if isinstance(event, CallStart)] == list(names)
    assert read == ARGUMENTS

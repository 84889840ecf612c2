"""One template: what it is given, what it may do, and what becomes of its failures."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.unit.chat import families

from milepost.api.openai.messages import parse_conversation
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt
from milepost.chat.templates.template import ChatTemplate, SpecialTexts
from milepost.errors import ConfigurationError, InvalidRequest, TemplateFailed

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hi"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads <a file> & more: ü",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
TOOL_LINE = (
    '{"type": "function", "function": {"name": "read", "description": "Reads <a file> & more: ü", '
    '"parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}'
)


def make(source: str, *, bos: str = "", eos: str = "") -> ChatTemplate:
    """Return a template with a clock that stands still."""
    return ChatTemplate(
        source,
        name="test",
        texts=SpecialTexts(bos=bos, eos=eos),
        now=lambda: datetime(2026, 3, 4, 5, 6),
    )


def talk(*messages: dict[str, Any], tools: Any = None) -> Conversation:
    """Return a conversation."""
    return parse_conversation(list(messages), tools)


def reply(text: str | None, **fields: Any) -> dict[str, Any]:
    """Return an assistant message."""
    return {"role": "assistant", "content": text, **fields}


def calling(arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    """Return an assistant message with one tool call and no content."""
    function = {"name": "read", "arguments": arguments}
    return reply(None, tool_calls=[{"id": call_id, "type": "function", "function": function}])


def result(content: str, call_id: str = "call_1") -> dict[str, Any]:
    """Return a tool message."""
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def test_a_tool_conversation_renders_to_the_letter() -> None:
    conversation = talk(
        SYSTEM,
        USER,
        reply("Let me look.", reasoning_content="old thought"),
        USER,
        {**calling('{"path": "ü<b>", "n": 1}'), "reasoning_content": "look first"},
        result('{"a": "b"}'),
        tools=TOOLS,
    )
    assert make(families.CHATML_TOOLS).render(conversation).text == (
        f"<|im_start|>system\nBe brief.\n\n# Tools\n{TOOL_LINE}<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nLet me look.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nlook first\n</think>\n\n"
        '<tool_call>\n{"name": "read", "arguments": {"path": "ü<b>", "n": 1}}\n</tool_call>'
        "<|im_end|>\n"
        '<|im_start|>user\n<tool_response>\n{"a": "b"}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out() -> None:
    template = make(families.CHATML_TOOLS)
    without = template.render(talk(USER), add_generation_prompt=False).text
    assert without == "<|im_start|>user\nhi<|im_end|>\n"
    assert template.render(talk(USER)).text == f"{without}<|im_start|>assistant\n"


def test_kwargs_reach_the_template() -> None:
    template = make(families.CHATML_TOOLS)
    rendered = template.render(talk(USER), kwargs={"enable_thinking": False}).text
    assert rendered.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_variables_have_llama_servers_defaults() -> None:
    template = make("{{ enable_thinking }} {{ date_string }} {{ datetime }}")
    assert template.render(talk(USER)).text == "True 04 Mar 2026 Mar 04 2026"
    assert template.render(talk(USER), kwargs={"date_string": "x"}).text == "True x Mar 04 2026"


def test_tools_and_documents_are_none_when_there_are_none() -> None:
    template = make("{{ tools is none }} {{ documents is none }}")
    assert template.render(talk(USER)).text == "True True"


@pytest.mark.parametrize("kwargs", [{}, {"documents": ["d"]}])
def test_documents_come_from_the_request_or_from_kwargs(kwargs: dict[str, Any]) -> None:
    documents = None if kwargs else ["d"]
    conversation = parse_conversation([USER], documents=documents)
    assert make("{{ documents | tojson }}").render(conversation, kwargs=kwargs).text == '["d"]'


def test_documents_given_twice_are_refused() -> None:
    conversation = parse_conversation([USER], documents=["a"])
    with pytest.raises(InvalidRequest, match="documents are given twice"):
        make("x").render(conversation, kwargs={"documents": ["b"]})


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "eos_token", "add_generation_prompt"]
)
def test_kwargs_must_not_replace_the_conversation(name: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        make("x").render(talk(USER), kwargs={name: []})
    assert f"chat_template_kwargs must not set '{name}'" in str(raised.value)
    assert raised.value.param == "chat_template_kwargs"


def test_a_quoted_false_for_enable_thinking_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is the string 'false'; send true or false"):
        make("x").render(talk(USER), kwargs={"enable_thinking": "false"})


def test_special_tokens_are_variables() -> None:
    template = make("{{ bos_token }}x{{ eos_token }}", bos="<s>", eos="</s>")
    assert template.render(talk(USER)).text == "<s>x</s>"


def test_system_messages_stay_where_they_are() -> None:
    late = {"role": "system", "content": "Now in verse."}
    rendered = make(families.CHATML_TOOLS).render(talk(USER, late, USER)).text
    assert rendered.index("hi") < rendered.index("Now in verse.") < rendered.rindex("hi")


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("{'b': 'ü<&>', 'a': [1, 2]} | tojson", '{"b": "ü<&>", "a": [1, 2]}'),
        ("{'a': 1} | tojson(indent=2)", '{\n  "a": 1\n}'),
        ("{'a': [1, 2]} | tojson(separators=(',', ':'))", '{"a":[1,2]}'),
        ("'ü' | tojson(ensure_ascii=True)", '"\\u00fc"'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=True)", '{"a": 2, "b": 1}'),
        ("[{'a': 1}] | selectattr('a') | tojson", '[{"a": 1}]'),
        ("[nothing] | tojson", "[null]"),
        ("(('<' | tojson) | safe) ~ '<&>'", '"<"<&>'),
        ("'functions: ' + functions", "functions: "),
        ("functions + '.'", "."),
        ("strftime_now('%Y-%m-%d')", "2026-03-04"),
    ],
)
def test_filters_and_functions_are_those_of_the_reference(expression: str, written: str) -> None:
    assert make(f"{{{{ {expression} }}}}").render(talk(USER)).text == written


def test_loop_controls_and_trimmed_blocks() -> None:
    source = """\
{% for i in range(9) %}
    {% if i == 1 %}
        {% continue %}
    {% endif %}
{{ i }}
    {% if i == 3 %}{% break %}{% endif %}
{% endfor %}
end
"""
    assert make(source).render(talk(USER)).text == "0\n2\n3\nend"


def test_the_generation_tag_passes_its_body_through() -> None:
    rendered = make(families.GENERATION_TAG).render(talk(USER, reply("yes"), USER)).text
    assert rendered == "user: hi\nyes<|im_end|>\nuser: hi\n"


def test_lists_may_be_appended_to() -> None:
    conversation = talk(USER, calling("{}"), calling("{}"), result("a"), result("b"))
    rendered = make(families.APPENDING).render(conversation).text
    assert rendered == "functions.read=a;functions.read=b;"


def test_a_template_that_changes_its_messages_changes_only_its_own() -> None:
    template = make("{% set _ = messages.append(1) %}{% set _ = messages[0].update(content='x') %}")
    conversation = talk(USER)
    template.render(conversation)
    assert conversation.messages == [USER]


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (families.TEXT_ARGUMENTS, 'assistant:  [read{"b":  1, "a": "ü"}];\n'),
        (families.PRINTED_ARGUMENTS, 'assistant:  [{"b":  1, "a": "ü"}];\n'),
    ],
    ids=["concatenated", "printed"],
)
def test_a_template_that_takes_text_gets_arguments_as_they_arrived(
    source: str, written: str
) -> None:
    template = make(source)
    assert template.profile.traits.arguments == "text"
    assert written in template.render(talk(USER, calling('{"b":  1, "a": "ü"}'))).text


def test_the_form_of_arguments_is_learned_when_probing_cannot_tell() -> None:
    source = "{% if messages[0].content != 'sesame' %}{{ raise_exception('closed') }}{% endif %}"
    template = make(source + families.TEXT_ARGUMENTS)
    assert template.profile.traits.arguments is None
    sesame = {"role": "user", "content": "sesame"}
    for _ in range(2):
        assert '[read{"a":1}]' in template.render(talk(sesame, calling('{"a":1}'))).text
    with pytest.raises(TemplateFailed, match="closed"):
        template.render(talk(USER, calling('{"a":1}')))


def test_a_call_that_is_no_json_does_not_end_the_conversation() -> None:
    broken = talk(USER, calling('{"path": "a'), result("bad JSON"), calling('{"path": "b"}'))
    rendered = make(families.ITEMS_OF_ARGUMENTS).render(broken).text
    assert rendered == 'hi<arguments={"path": "a>bad JSON<path=b>'
    assert '"arguments": "{\\"path\\": \\"a"}' in make(families.CHATML_TOOLS).render(broken).text


def test_ids_are_shortened_where_the_template_insists() -> None:
    template = make(families.INST_ALTERNATING, bos="<s>", eos="</s>")
    rendered = template.render(
        talk(USER, calling("{}", "call_0123456789"), result("x", "call_0123456789"))
    ).text
    call_id = rendered.partition("[TOOL_RESULTS]")[2][:9]
    assert call_id.isalnum()
    assert rendered == (
        '<s>[INST] hi [/INST][TOOL_CALLS]{"name": "read", "arguments": {}}'
        f"{call_id}</s>[TOOL_RESULTS]{call_id}x[/TOOL_RESULTS]"
    )
    again = template.render(talk(USER, calling("{}", "abcDEF123"), result("x", "abcDEF123"))).text
    assert "abcDEF123</s>[TOOL_RESULTS]abcDEF123x" in again


def test_typed_parts_are_given_to_a_template_that_only_knows_them() -> None:
    template = make(families.TYPED_PARTS)
    assert template.profile.traits.takes_parts
    assert template.render(talk(SYSTEM, USER)).text == "<system>Be brief.<user>hi"


def test_a_template_for_tools_gets_an_empty_list_when_there_are_none() -> None:
    template = make(families.TOOLS_ALWAYS)
    assert template.render(talk(USER)).text == "hi"
    assert template.render(talk(USER, tools=TOOLS)).text == "read hi"


def test_developer_is_system_unless_the_template_knows_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert "<|im_start|>system\nx" in make(families.CHATML_TOOLS).render(talk(message, USER)).text
    assert "<dev>x" in make(families.THINKING_KEY).render(talk(message, USER)).text


def test_function_is_tool() -> None:
    message = {"role": "function", "name": "read", "content": "x"}
    assert "<tool_response>\nx" in make(families.CHATML_TOOLS).render(talk(USER, message)).text


def test_reasoning_goes_where_the_template_reads_it() -> None:
    template = make(families.THINKING_KEY)
    plain = reply("yes", reasoning_content="hm")
    assert template.render(talk(USER, plain)).text == "<analysis>hm<final>yes"
    both = {**calling("{}"), "content": "look", "reasoning_content": "hm"}
    assert template.render(talk(USER, both)).text == "<analysis>hm\nlook<final>"


def test_reasoning_is_a_part_of_the_content_where_the_template_reads_it_there() -> None:
    template = make(families.THINKING_PART)
    conversation = talk(USER, reply("yes", reasoning_content="hm"), reply("no"))
    assert template.render(conversation).text == "hi;[THINK]hm[/THINK]yes;no;"


def test_content_is_null_beside_calls_that_a_template_would_leave_out() -> None:
    template = make(families.NULL_CONTENT)
    assert template.render(talk(USER, calling('{"a":1}'), reply("x"))).text == 'hi;<{"a":1}>;x;'


def test_a_refusal_is_quoted() -> None:
    with pytest.raises(TemplateFailed) as raised:
        make("{{ raise_exception('System role not supported') }}").render(talk(SYSTEM, USER))
    assert str(raised.value) == (
        "the chat template of test refused the conversation: System role not supported"
    )
    assert raised.value.http_status == 400


def test_a_faulty_template_is_named_with_its_line() -> None:
    with pytest.raises(TemplateFailed, match=r"failed in line 2: UndefinedError: 'who' is undef"):
        make("x\n{{ who.is + 'x' }}\n").render(talk(USER))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ self._TemplateReference__context.environment.loader.x }}",
        "{% include 'x' %}",
        "{{ tools | tojson(indent=messages) }}{{ messages[7].x }}",
    ],
)
def test_hostile_templates_only_fail(source: str) -> None:
    with pytest.raises(TemplateFailed):
        make(source).render(talk(USER))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a\n{% if %}\n", "has an error in line 2"),
        ("{% for x in y %}", "has an error in line 1"),
        ("{{ x | nofilter }}", "has an error in line 1"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
    ],
)
def test_a_template_that_does_not_compile_ends_the_start(source: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make(source)
    assert f"the chat template of test {said}" in str(raised.value)
    assert "--chat-template" in str(raised.value)


def test_lone_surrogates_do_not_reach_the_tokenizer() -> None:
    template = make("{{ messages[0].content }}{{ messages[1].tool_calls[0] | tojson }}")
    rendered = template.render(
        talk({"role": "user", "content": "a\ud800b😀"}, calling('{"x": "\\ud800"}'))
    ).text
    assert rendered.startswith("a\ufffdb😀")
    assert '{"x": "\ufffd"}' in rendered


def test_a_prompt_without_spelled_control_tokens_has_no_marks() -> None:
    assert make("x").render(talk(USER)) == RenderedPrompt("x", marks=())

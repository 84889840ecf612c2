"""What templates show of the format of replies, with values written out for each family."""

from __future__ import annotations

import pytest
from tests.published import TEMPLATE_PATHS, read_template
from tests.unit.chat.reply_templates import (
    GEMMA,
    GLM,
    HERMES,
    QWEN_XML,
    SPLITS_CONTENT,
    THINK,
    calls,
    reasoned,
    tagged,
    template,
)

from milepost.chat.conversation.rendered_prompt import ControlTexts
from milepost.chat.formats.braced_calls import BracedBody
from milepost.chat.formats.harmony import HarmonyBody
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.named_json_calls import NamedJsonBody
from milepost.chat.formats.pythonic_calls import PythonicBody
from milepost.chat.formats.reply_format import Affix, ReasoningFormat, ReplyFormat, ToolCallFormat
from milepost.chat.formats.tagged_calls import TaggedBody
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts

THINK_DROPPED = ReasoningFormat("<think>", "</think>", "dropped")
THINK_OF_TURN = ReasoningFormat("<think>", "</think>", "dropped_before_last_user")
HERMES_CALLS = ToolCallFormat(JsonBody(), call=Affix("<tool_call>", "</tool_call>"))
LLAMA_CALLS = ToolCallFormat(JsonBody(arguments_key="parameters"), takes_several=False)
QWEN_XML_CALLS = ToolCallFormat(
    TaggedBody(
        name_start="<function=",
        name_end=">\n",
        key_start="<parameter=",
        key_end=">\n",
        value_end="\n</parameter>\n",
        arguments_end="</function>",
    ),
    call=Affix("<tool_call>", "</tool_call>"),
)
DEEPSEEK_CALL = Affix("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
DEEPSEEK_CALLS = Affix("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

FORMATS = {
    "ByteDance-Seed-OSS": ReplyFormat(
        ReasoningFormat("<seed:think>", "</seed:think>", "kept"),
        ToolCallFormat(
            TaggedBody(
                name_start="<function=",
                name_end=">\n",
                key_start="<parameter=",
                key_end=">",
                value_end="</parameter>\n",
                arguments_end="</function>",
            ),
            call=Affix("<seed:tool_call>", "</seed:tool_call>"),
        ),
    ),
    "GLM-4.6": ReplyFormat(
        THINK_OF_TURN,
        ToolCallFormat(
            TaggedBody(
                name_end="\n",
                key_start="<arg_key>",
                key_end="</arg_key>\n<arg_value>",
                value_end="</arg_value>\n",
            ),
            call=Affix("<tool_call>", "</tool_call>"),
        ),
    ),
    "HuggingFaceTB-SmolLM3-3B": ReplyFormat(THINK_DROPPED, HERMES_CALLS),
    "Kimi-K2-Instruct": ReplyFormat(
        None,
        ToolCallFormat(
            NamedJsonBody("functions.", "<|tool_call_argument_begin|>", id_start=":"),
            Affix("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            Affix("<|tool_call_begin|>", "<|tool_call_end|>"),
        ),
    ),
    "LFM2-8B-A1B": ReplyFormat(
        None, ToolCallFormat(PythonicBody(), Affix("<|tool_call_start|>", "<|tool_call_end|>"))
    ),
    "MiniMax-M2": ReplyFormat(
        THINK_OF_TURN,
        ToolCallFormat(
            TaggedBody(
                name_start='<invoke name="',
                name_end='">\n',
                key_start='<parameter name="',
                key_end='">',
                value_end="</parameter>\n",
                arguments_end="</invoke>",
            ),
            Affix("<minimax:tool_call>", "</minimax:tool_call>"),
        ),
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": ReplyFormat(
        None,
        ToolCallFormat(
            NamedJsonBody(name_end="[ARGS]", id_start="[CALL_ID]"), call=Affix("[TOOL_CALLS]")
        ),
    ),
    "NVIDIA-Nemotron-Nano-v2": ReplyFormat(
        THINK_DROPPED, ToolCallFormat(JsonBody(in_list=True), Affix("<TOOLCALL>", "</TOOLCALL>"))
    ),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ReplyFormat(None, HERMES_CALLS),
    "Qwen-Qwen2.5-7B-Instruct": ReplyFormat(None, HERMES_CALLS),
    "Qwen-Qwen3-0.6B": ReplyFormat(THINK_OF_TURN, HERMES_CALLS),
    "Qwen3-Coder": ReplyFormat(None, QWEN_XML_CALLS),
    "Qwen3.5-4B": ReplyFormat(THINK_OF_TURN, QWEN_XML_CALLS),
    "StepFun3.5-Flash": ReplyFormat(THINK_OF_TURN, QWEN_XML_CALLS),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ReplyFormat(
        THINK_DROPPED,
        ToolCallFormat(
            NamedJsonBody("function<｜tool▁sep｜>", "\n```json\n", arguments_end="```"),
            DEEPSEEK_CALLS,
            DEEPSEEK_CALL,
        ),
    ),
    "deepseek-ai-DeepSeek-V3.1": ReplyFormat(
        THINK_DROPPED,
        ToolCallFormat(NamedJsonBody(name_end="<｜tool▁sep｜>"), DEEPSEEK_CALLS, DEEPSEEK_CALL),
    ),
    "google-gemma-2-2b-it": ReplyFormat(None, HERMES_CALLS),
    "google-gemma-4-31B-it": ReplyFormat(
        ReasoningFormat("<|channel>thought", "<channel|>", "dropped_before_last_user"),
        ToolCallFormat(BracedBody(), call=Affix("<|tool_call>", "<tool_call|>")),
    ),
    "ibm-granite-granite-4.0": ReplyFormat(None, HERMES_CALLS),
    "meta-llama-Llama-3.1-8B-Instruct": ReplyFormat(None, LLAMA_CALLS),
    "meta-llama-Llama-3.3-70B-Instruct": ReplyFormat(None, LLAMA_CALLS),
    "microsoft-Phi-3.5-mini-instruct": ReplyFormat(None, HERMES_CALLS),
    "mistralai-Mistral-Nemo-Instruct-2407": ReplyFormat(
        None, ToolCallFormat(JsonBody(id_key="id", in_list=True), Affix("[TOOL_CALLS]"))
    ),
    "openai-gpt-oss-120b": ReplyFormat(
        ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>", "dropped_before_last_user"),
        ToolCallFormat(HarmonyBody(), takes_several=False),
        Affix("<|channel|>final<|message|>"),
    ),
}


def load(source: str) -> ChatTemplate:
    return ChatTemplate(source, name="test", texts=SpecialTexts("<s>", "</s>"))


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_of_a_published_template_is_learnt(name: str) -> None:
    source = read_template(name)
    assert load(source).reply_format == FORMATS[name]


def test_every_published_template_has_its_format_written_out() -> None:
    assert {path.stem for path in TEMPLATE_PATHS} == set(FORMATS)


LEARNT = [
    pytest.param(template(HERMES), ReplyFormat(None, HERMES_CALLS), id="hermes"),
    pytest.param(template(THINK + HERMES), ReplyFormat(THINK_OF_TURN, HERMES_CALLS), id="qwen3"),
    pytest.param(template(QWEN_XML), ReplyFormat(None, QWEN_XML_CALLS), id="qwen3-coder"),
    pytest.param(
        template(THINK + QWEN_XML, generation=r"{{ '<think>\n' }}"),
        ReplyFormat(THINK_OF_TURN, QWEN_XML_CALLS),
        id="qwen3.5",
    ),
    pytest.param(
        template(GLM),
        ReplyFormat(
            None,
            ToolCallFormat(
                TaggedBody(
                    name_end="\n",
                    key_start="<arg_key>",
                    key_end="</arg_key>\n<arg_value>",
                    value_end="</arg_value>\n",
                ),
                call=Affix("<tool_call>", "</tool_call>"),
            ),
        ),
        id="glm",
    ),
    pytest.param(
        template(
            SPLITS_CONTENT
            + calls(
                "'<｜tool▁call▁begin｜>' ~ NAME ~ '<｜tool▁sep｜>' ~ ARGUMENTS"
                " ~ '<｜tool▁call▁end｜>'",
                before="'<｜tool▁calls▁begin｜>'",
                after="'<｜tool▁calls▁end｜>'",
                content="",
            ),
            generation="{{ '<think>' if enable_thinking else '<think></think>' }}",
        ),
        ReplyFormat(
            THINK_DROPPED,
            ToolCallFormat(NamedJsonBody(name_end="<｜tool▁sep｜>"), DEEPSEEK_CALLS, DEEPSEEK_CALL),
        ),
        id="deepseek-v3.1",
    ),
    pytest.param(
        template(
            calls(
                "'<|call_begin|>functions.' ~ NAME ~ ':' ~ NUMBER ~ '<|args|>' ~ ARGUMENTS"
                " ~ '<|call_end|>'",
                before="'<|section_begin|>'",
                after="'<|section_end|>'",
            )
        ),
        ReplyFormat(
            None,
            ToolCallFormat(
                NamedJsonBody("functions.", "<|args|>", id_start=":"),
                Affix("<|section_begin|>", "<|section_end|>"),
                Affix("<|call_begin|>", "<|call_end|>"),
            ),
        ),
        id="kimi",
    ),
    pytest.param(
        template(calls("'[TOOL_CALLS]' ~ NAME ~ '[CALL_ID]' ~ ID ~ '[ARGS]' ~ ARGUMENTS")),
        ReplyFormat(
            None,
            ToolCallFormat(
                NamedJsonBody(name_end="[ARGS]", id_start="[CALL_ID]"), call=Affix("[TOOL_CALLS]")
            ),
        ),
        id="mistral-small",
    ),
    pytest.param(
        template(
            calls(
                """(', ' if NUMBER else '') ~ '{"name": "' ~ NAME ~ '", "arguments": '"""
                """ ~ ARGUMENTS ~ ', "id": "' ~ ID ~ '"}'""",
                before="'[TOOL_CALLS]['",
                after="']'",
            )
        ),
        ReplyFormat(
            None, ToolCallFormat(JsonBody(id_key="id", in_list=True), Affix("[TOOL_CALLS]"))
        ),
        id="mistral-nemo",
    ),
    pytest.param(
        template(
            reasoned("'<|START_THINKING|>'", "'<|END_THINKING|>'")
            + calls(
                """(',' if NUMBER else '') ~ '\\n {"tool_call_id": "' ~ NUMBER"""
                """ ~ '", "tool_name": "' ~ NAME ~ '", "parameters": ' ~ ARGUMENTS ~ '}'""",
                before="'<|START_ACTION|>['",
                after=r"'\n]<|END_ACTION|>'",
                content="{% if message.content %}"
                "<|START_RESPONSE|>CONTENT<|END_RESPONSE|>{% endif %}",
            )
        ),
        ReplyFormat(
            ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>", "kept"),
            ToolCallFormat(
                JsonBody("tool_name", "parameters", id_key="tool_call_id", in_list=True),
                Affix("<|START_ACTION|>", "<|END_ACTION|>"),
            ),
            Affix("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        id="command-r7b",
    ),
    pytest.param(
        template(
            "{% if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
            + calls("""'{"name": "' ~ NAME ~ '", "parameters": ' ~ ARGUMENTS ~ '}'""")
        ),
        ReplyFormat(None, LLAMA_CALLS),
        id="llama3",
    ),
    pytest.param(
        template(
            "{% if message.tool_calls %}{{ ' to=functions.' ~ message.tool_calls[0].function.name"
            " ~ '<|channel|>commentary json<|message|>'"
            " ~ (message.tool_calls[0].function.arguments | tojson) }}{% else %}"
            + reasoned("'<|channel|>analysis<|message|>'", "'<|end|>'", condition="is_last_turn")
            + "{{ '<|channel|>final<|message|>' ~ message.content }}{% endif %}"
        ),
        ReplyFormat(
            ReasoningFormat(
                "<|channel|>analysis<|message|>", "<|end|>", "dropped_before_last_user"
            ),
            ToolCallFormat(HarmonyBody(), takes_several=False),
            Affix("<|channel|>final<|message|>"),
        ),
        id="gpt-oss",
    ),
    pytest.param(
        template(GEMMA),
        ReplyFormat(None, ToolCallFormat(BracedBody(), call=Affix("<|tool_call>", "<tool_call|>"))),
        id="gemma4",
    ),
    pytest.param(
        template(
            "{{ message.content }}{% if message.tool_calls %}{{ '<|python_start|>[' }}"
            "{% for call in message.tool_calls %}"
            "{{ (', ' if not loop.first else '') ~ call.function.name ~ '(' }}"
            "{% for key, value in call.function.arguments | items %}"
            "{{ (', ' if not loop.first else '') ~ key ~ '=' ~ (value | tojson) }}"
            "{% endfor %}{{ ')' }}{% endfor %}{{ ']<|python_end|>' }}{% endif %}"
        ),
        ReplyFormat(
            None, ToolCallFormat(PythonicBody(), Affix("<|python_start|>", "<|python_end|>"))
        ),
        id="llama4",
    ),
    pytest.param(
        template("{{ message.content }}", explanation="<|tool_list_start|>above<|tool_list_end|>"),
        ReplyFormat(
            None, ToolCallFormat(PythonicBody(), Affix("<|tool_call_start|>", "<|tool_call_end|>"))
        ),
        id="lfm2",
    ),
    pytest.param(
        template(
            "{{ message.content }}",
            explanation='Answer <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>',
        ),
        ReplyFormat(None, HERMES_CALLS),
        id="explained by an example",
    ),
    pytest.param(
        template(
            "{{ message.content }}",
            explanation="Write <|tool_call|> followed by a JSON list of the tools used.",
        ),
        ReplyFormat(None, ToolCallFormat(JsonBody(in_list=True), Affix("<|tool_call|>"))),
        id="granite-3.3",
    ),
    pytest.param(
        template(SPLITS_CONTENT, generation=r"{{ '<think>\n' }}"),
        ReplyFormat(THINK_DROPPED),
        id="reasoning that contents are cut at",
    ),
    pytest.param(
        template(
            "{{ message.content }}",
            generation=r"{{ '<think>\n\n</think>\n' if not enable_thinking }}",
        ),
        ReplyFormat(THINK_DROPPED),
        id="reasoning that can be switched off",
    ),
    pytest.param(
        template(
            "{% if message.content is string %}{{ message.content }}{% else %}"
            "{% for part in message.content %}{{ '[THINK]' ~ part.thinking ~ '[/THINK]' "
            "if part.type == 'thinking' else part.text }}{% endfor %}{% endif %}"
        ),
        ReplyFormat(ReasoningFormat("[THINK]", "[/THINK]", "kept")),
        id="reasoning as a part of the content",
    ),
    pytest.param(
        template(
            "{% if message.content is none %}"
            + calls(r"'<call>' ~ NAME ~ '\n```json\n' ~ ARGUMENTS ~ '\n```</call>'", content="")
            + "{% else %}{{ message.content }}{% endif %}"
        ),
        ReplyFormat(
            None,
            ToolCallFormat(
                NamedJsonBody(name_end="\n```json\n", arguments_end="```"),
                call=Affix("<call>", "</call>"),
            ),
        ),
        id="calls after null content",
    ),
]


@pytest.mark.parametrize(("source", "expected"), LEARNT)
def test_the_format_of_each_family_is_learnt(source: str, expected: ReplyFormat) -> None:
    assert load(source).reply_format == expected


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("⟦call⟧", "⟦/call⟧"),
        ("«aufruf»", "«/aufruf»"),
        ("@@call:", ":llac@@"),
        ("CALL ", " END\n"),
        ("<|x|><|y|>", "<|z|>"),
        ("]~b]do ", "[e~["),
    ],
)
def test_markers_that_no_model_has_are_learnt(start: str, end: str) -> None:
    source = template(
        calls(f"""{start!r} ~ '{{"tool": "' ~ NAME ~ '", "with": ' ~ ARGUMENTS ~ '}}' ~ {end!r}""")
    )
    expected = ToolCallFormat(JsonBody("tool", "with"), call=Affix(start.strip(), end.strip()))
    assert load(source).reply_format == ReplyFormat(None, expected)


@pytest.mark.parametrize(
    ("start", "end"), [("⟦mull⟧", "⟦/mull⟧"), ("(thinking)", "(done)"), ("<a><b>", "</b></a>")]
)
def test_reasoning_between_markers_that_no_model_has_is_learnt(start: str, end: str) -> None:
    source = template(reasoned(repr(start), repr(end + "\n")) + "{{ message.content }}")
    assert load(source).reply_format.reasoning == ReasoningFormat(start, end, "kept")


def test_reasoning_whose_start_is_nowhere_written_has_the_mirrored_one() -> None:
    source = template("{{ message.reasoning_content ~ '</r>' ~ message.content }}")
    assert load(source).reply_format.reasoning == ReasoningFormat("<r>", "</r>", "kept")


def test_reasoning_that_only_a_prompt_begins_is_learnt() -> None:
    source = template(
        "{{ message.reasoning_content ~ '\n[ANSWER]\n' ~ message.content }}",
        generation="Let me think:",
    )
    assert load(source).reply_format.reasoning == ReasoningFormat(
        "Let me think:", "[ANSWER]", "kept"
    )


def test_reasoning_that_a_prompt_explains_where_it_is_asked_for_is_learnt() -> None:
    explained = "{% if thinking %}Write your thoughts between <think></think>.{% endif %}"
    source = explained + template("{{ message.content }}")
    assert load(source).reply_format.reasoning == ReasoningFormat("<think>", "</think>", "dropped")


def test_a_wrapped_call_with_its_arguments_as_text_is_learnt() -> None:
    source = template(
        calls(
            """'<c>{"id": "' ~ ID ~ '", "function": {"name": "' ~ NAME ~ '", "arguments": '"""
            """ ~ (ARGUMENTS | tojson) ~ '}}</c>'"""
        )
    )
    body = JsonBody(id_key="id", wrapper_key="function", arguments_are_text=True)
    assert load(source).reply_format.tool_calls == ToolCallFormat(body, call=Affix("<c>", "</c>"))


def test_tags_that_say_whether_a_value_is_a_text_are_learnt() -> None:
    source = template(
        tagged(
            """'<do="' ~ NAME ~ '">'""",
            """'<arg="'""",
            """('" text>' if value is string else '" json>')""",
            "'</arg>'",
            "'</do>'",
        )
    )
    found = load(source).reply_format.tool_calls
    assert found is not None
    assert isinstance(found.body, TaggedBody)
    assert (found.body.key_end, found.body.json_key_end) == ('" text>', '" json>')


@pytest.mark.parametrize(
    "reply",
    [
        tagged("'<' ~ NAME ~ '>'", "'<'", "'>'", "'</' ~ key ~ '>'", "'</call>'"),
        calls("'<call>' ~ ID ~ '<name>' ~ NAME ~ ARGUMENTS ~ '</call>'"),
        calls("NAME ~ ': ' ~ ARGUMENTS"),
        calls("'<call>' ~ NAME ~ ' with something'"),
    ],
    ids=["keys in closing tags", "id before the name", "nothing around a call", "no arguments"],
)
def test_a_format_that_has_no_record_is_none(reply: str) -> None:
    assert load(template(reply)).reply_format.tool_calls is None


def test_lfm2_is_recognised_by_the_tokens_of_its_vocabulary() -> None:
    controls = ControlTexts(["<|tool_call_start|>", "<|tool_call_end|>"])
    loaded = ChatTemplate(
        template("{{ message.content }}"), name="test", texts=SpecialTexts(controls=controls)
    )
    assert loaded.reply_format.tool_calls == ToolCallFormat(
        PythonicBody(), Affix("<|tool_call_start|>", "<|tool_call_end|>")
    )


@pytest.mark.parametrize("source", ["", "{{ raise_exception('no') }}", "{{ messages[7].content }}"])
def test_a_template_that_shows_nothing_has_a_plain_format(source: str) -> None:
    assert load(source).reply_format == ReplyFormat()


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_built_in_templates_but_one_know_no_reasoning_and_are_told_of_calls(name: str) -> None:
    expected = ReplyFormat(None, HERMES_CALLS)
    if name == "gpt-oss":
        expected = FORMATS["openai-gpt-oss-120b"]
    assert load(BUILTIN_TEMPLATES[name]).reply_format == expected

"""What templates show of the format of replies, with values written out for each family."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.chat.reply_format import (
    Affix,
    BracedBody,
    HarmonyBody,
    JsonBody,
    NamedJsonBody,
    PythonicBody,
    ReasoningFormat,
    ReplyFormat,
    TaggedBody,
    ToolCallFormat,
)
from milepost.chat.template import ChatTemplate, SpecialTexts

PUBLISHED = Path(__file__).parents[4] / "shared" / "templates"
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
    "HuggingFaceTB-SmolLM3-3B": ReplyFormat(THINK_DROPPED),
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
    "google-gemma-2-2b-it": ReplyFormat(),
    "google-gemma-4-31B-it": ReplyFormat(
        ReasoningFormat("<|channel>thought", "<channel|>", "dropped_before_last_user"),
        ToolCallFormat(BracedBody(), call=Affix("<|tool_call>", "<tool_call|>")),
    ),
    "ibm-granite-granite-4.0": ReplyFormat(None, HERMES_CALLS),
    "meta-llama-Llama-3.1-8B-Instruct": ReplyFormat(None, LLAMA_CALLS),
    "meta-llama-Llama-3.3-70B-Instruct": ReplyFormat(None, LLAMA_CALLS),
    "microsoft-Phi-3.5-mini-instruct": ReplyFormat(),
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


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="published templates are not here")
@pytest.mark.parametrize("name", FORMATS)
def test_the_format_of_a_published_template_is_learnt(name: str) -> None:
    source = (PUBLISHED / f"{name}.jinja").read_text(encoding="utf-8")
    assert load(source).reply_format == FORMATS[name]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="published templates are not here")
def test_every_published_template_has_its_format_written_out() -> None:
    assert {path.stem for path in PUBLISHED.glob("*.jinja")} == set(FORMATS)

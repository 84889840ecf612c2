"""Which template a model gets: its own, a named one, a text, a file, or ChatML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab

from milepost.chat.conversation.conversation import Conversation, make_conversation
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.loading import load_templates
from milepost.chat.templates.template import TemplateSet
from milepost.errors import ConfigurationError

TALK = make_conversation([{"role": "user", "content": "hi"}])
TOOL = {"type": "function", "function": {"name": "read"}}
WITH_TOOLS = make_conversation([{"role": "user", "content": "hi"}], [TOOL])


def load(embedded: dict[str, str], **flags: Any) -> TemplateSet:
    """Load templates for a small vocabulary."""
    return load_templates(embedded, FakeVocab(), **flags)


def rendered(templates: TemplateSet, conversation: Conversation = TALK) -> str:
    """Return the prompt of a conversation."""
    return templates.render(conversation).text


def test_the_models_own_template_is_used() -> None:
    templates = load({"": "own {{ bos_token }}{{ messages[0].content }}"})
    assert rendered(templates) == "own <|endoftext|>hi"
    assert not templates.is_fallback


def test_the_tool_use_template_is_for_requests_with_tools() -> None:
    templates = load({"": "plain", "tool_use": "tools"})
    assert rendered(templates) == "plain"
    assert rendered(templates, WITH_TOOLS) == "tools"
    assert templates.choose(WITH_TOOLS) is templates.tool_use


def test_a_tool_use_template_alone_is_for_everything() -> None:
    templates = load({"tool_use": "tools"})
    assert rendered(templates) == "tools"
    assert templates.tool_use is None


def test_a_faulty_tool_use_template_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    templates = load({"": "plain", "tool_use": "{% if %}"})
    assert rendered(templates, WITH_TOOLS) == "plain"
    assert "has an error in line 1" in caplog.text


def test_a_faulty_template_of_the_model_ends_the_start() -> None:
    with pytest.raises(ConfigurationError, match="the chat template of the model has an error"):
        load({"": "{% if %}"})


def test_a_model_without_template_gets_chatml(caplog: pytest.LogCaptureFixture) -> None:
    templates = load({})
    assert templates.is_fallback
    assert rendered(templates) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert "no chat template" in caplog.text


def test_a_text_replaces_all_of_the_models_templates() -> None:
    templates = load(
        {"": "plain", "tool_use": "tools"}, chat_template="mine {{ messages[0].role }}"
    )
    assert rendered(templates, WITH_TOOLS) == "mine user"


def test_a_name_is_one_of_the_models_or_a_built_in_one() -> None:
    embedded = {"": "plain", "tool_use": "tools"}
    assert rendered(load(embedded, chat_template="tool_use")) == "tools"
    assert rendered(load(embedded, chat_template="phi3")) == "<|user|>\nhi<|end|>\n<|assistant|>\n"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as raised:
        load({"": "plain", "rag": "x"}, chat_template="chatlm")
    assert "--chat-template 'chatlm' is neither a Jinja template" in str(raised.value)
    assert "chatml" in str(raised.value)
    assert "rag" in str(raised.value)


def test_a_file_replaces_the_models_templates(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("ü {{ messages[0].content }}\n", encoding="utf-8")
    assert rendered(load({"": "plain"}, chat_template_file=str(path))) == "ü hi"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "is not UTF-8 text"),
        (b"\n{% endif %}", "mine.jinja has an error in line 2"),
    ],
)
def test_a_bad_file_ends_the_start(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        load({}, chat_template_file=str(path))
    assert said in str(raised.value)


def test_a_name_and_a_file_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="are both given"):
        load({}, chat_template="chatml", chat_template_file="x")


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_every_built_in_template_writes_every_message(name: str) -> None:
    conversation = make_conversation(
        [
            {"role": "system", "content": "SYSTEM"},
            {"role": "user", "content": "FIRST"},
            {"role": "assistant", "content": "ANSWER"},
            {"role": "user", "content": "SECOND"},
        ]
    )
    text = rendered(load({}, chat_template=name), conversation)
    places = [text.index(word) for word in ("SYSTEM", "FIRST", "ANSWER", "SECOND")]
    assert places == sorted(places)
    assert len(set(places)) == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        ("llama2", "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s>[INST] V [/INST]"),
        (
            "llama3",
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral-v3", "[INST] S\n\nU[/INST] A</s>[INST] V[/INST]"),
        ("mistral-v7-tekken", "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]A</s>[INST]V[/INST]"),
        (
            "gemma",
            "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
            "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("vicuna", "S\n\nUSER: U\nASSISTANT: A</s>\nUSER: V\nASSISTANT:"),
        (
            "deepseek3",
            "S\n\n<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V<｜Assistant｜>",
        ),
    ],
)
def test_built_in_templates_to_the_letter(name: str, expected: str) -> None:
    roles_and_texts = [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")]
    messages = [{"role": role, "content": text} for role, text in roles_and_texts]
    text = rendered(load({}, chat_template=name), make_conversation(messages))
    assert text == expected

"""The tiny models are what the tests that use them take for granted."""

from pathlib import Path
from typing import Any

import gguf
import jinja2
import pytest
from tests import models


def render(**context: Any) -> str:
    environment = jinja2.Environment()
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(models.DEFAULT_TEMPLATE).render(context)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("kind", models.KINDS)
def test_same_seed_gives_same_bytes(kind: models.Kind, tmp_path: Path) -> None:
    first = models.write_model(kind, tmp_path / "first.gguf", seed=7)
    second = models.write_model(kind, tmp_path / "second.gguf", seed=7)
    other = models.write_model(kind, tmp_path / "other.gguf", seed=8)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("kind", models.KINDS)
def test_models_are_small(kind: models.Kind, tmp_path: Path) -> None:
    size_bytes = models.write_model(kind, tmp_path / "tiny.gguf").stat().st_size
    assert 100_000 < size_bytes < 2_000_000


def test_file_states_template_and_special_tokens(tmp_path: Path) -> None:
    path = models.write_model("full", tmp_path / "tiny.gguf", template="{{ 'hello' }}")
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert fields["tokenizer.chat_template"].contents() == "{{ 'hello' }}"
    assert tokens[fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"
    assert tokens[fields["tokenizer.ggml.bos_token_id"].contents()] == "<|endoftext|>"
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False


def test_empty_template_leaves_model_without_one(tmp_path: Path) -> None:
    path = models.write_model("full", tmp_path / "tiny.gguf", template="")
    assert "tokenizer.chat_template" not in gguf.GGUFReader(path).fields


def test_vocabulary_has_each_byte_and_each_merge_once() -> None:
    tokens = models.vocabulary()
    assert len(set(tokens)) == len(tokens)
    assert [tokens[byte] for byte in (0x00, 0x0A, 0x20, 0x41, 0xFF)] == ["Ā", "Ċ", "Ġ", "A", "ÿ"]
    assert {"the", "ing", "Ġyou"} <= set(tokens)


def test_merges_only_join_tokens_that_exist_by_then() -> None:
    known = set(models.vocabulary()[:256])
    for left, right in ((left.replace("_", "Ġ"), right) for left, right in models.MERGES):
        assert {left, right} <= known, (left, right)
        known.add(left + right)


def test_template_renders_tools_calls_results_and_reasoning() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    prompt = render(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "reasoning_content": "Sum.", "tool_calls": [call]},
            {"role": "tool", "content": "2"},
        ],
        tools=[{"function": {"name": "add"}}],
        add_generation_prompt=True,
    )
    expected_tools, expected_rest = prompt.split("<|im_start|>system\nBe brief.", 1)
    assert '<tools>\n{"function": {"name": "add"}}\n</tools>' in expected_tools
    assert expected_rest == (
        "<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nSum.\n</think>\n\n\n<tool_call>\n"
        '{"arguments": {"a": 1}, "name": "add"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_closes_reasoning_when_thinking_is_off() -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = render(messages=messages, add_generation_prompt=True, enable_thinking=False)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_template_refuses_unknown_role() -> None:
    with pytest.raises(ValueError, match="unknown role: critic"):
        render(messages=[{"role": "critic", "content": "no"}])

"""Recorded tool conversations render with every published template that accepts their order."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab
from tests.published import TEMPLATE_PATHS, TRACE_FOLDER, TRACE_PATHS

from milepost.chat.conversation.conversation import Conversation, make_conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt, common_prefix
from milepost.chat.prompts.boundaries import BoundaryFinder, PromptBoundaries
from milepost.chat.prompts.tokenizer import PromptTokenizer
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet

SHORT_CONVERSATION = 20  # messages; the fake vocabulary takes its time

# These leave tool calls out of the prompt.
WITHOUT_CALLS = {"HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "microsoft-Phi-3.5-mini-instruct"}


@cache
def recorded() -> list[Conversation]:
    """Return some requests of each trace: the first ones, one in the middle, the last."""
    spec = importlib.util.spec_from_file_location("trace_format", TRACE_FOLDER / "trace_format.py")
    assert spec is not None
    assert spec.loader is not None
    trace_format: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trace_format)
    conversations = []
    for path in TRACE_PATHS:
        bodies = [request["body"] for request in trace_format.load(path)]
        for i in sorted({0, 1, 2, len(bodies) // 2, len(bodies) - 1} & set(range(len(bodies)))):
            body = bodies[i]
            conversations.append(make_conversation(body["messages"], body.get("tools")))
    return conversations


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_recordings_render(path: Path) -> None:
    template = ChatTemplate(path.read_text(), name=path.stem, texts=SpecialTexts.of(FakeVocab()))
    for conversation in recorded():
        _check_prompt(path.stem, template.render(conversation).text, conversation)


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_boundaries_of_recordings_are_where_they_should_be(path: Path) -> None:
    vocab = FakeVocab()
    template = ChatTemplate(path.read_text(), name=path.stem, texts=SpecialTexts.of(vocab))
    finder = BoundaryFinder(TemplateSet(template))
    for conversation in recorded()[::3]:
        rendered = template.render(conversation)
        found = finder.find_boundaries(conversation, rendered)
        _check_prompt_end(template, conversation, rendered, found)
        _check_order(conversation, rendered, found)
        if len(conversation.messages) < SHORT_CONVERSATION:
            _check_positions(PromptTokenizer(vocab), rendered, found)


def _check_prompt_end(
    template: ChatTemplate,
    conversation: Conversation,
    rendered: RenderedPrompt,
    found: PromptBoundaries,
) -> None:
    """Check the end against its definition."""
    without = template.render(conversation, add_generation_prompt=False)
    (prompt_end,) = (b.offset for b in found.boundaries if b.kind == "prompt_end")
    assert prompt_end == common_prefix(without.text, rendered.text)


def _check_order(
    conversation: Conversation, rendered: RenderedPrompt, found: PromptBoundaries
) -> None:
    """Check that each user text is in the part of the prompt that ends with its message."""
    start = 0
    for boundary in found.boundaries:
        if boundary.kind not in ("message_end", "prompt_end"):
            continue
        message = conversation.messages[boundary.message_index]
        if message["role"] == "user":
            assert message["content"].strip() in rendered.text[start : boundary.offset]
        start = boundary.offset


def _check_positions(
    tokenizer: PromptTokenizer, rendered: RenderedPrompt, found: PromptBoundaries
) -> None:
    offsets = [boundary.offset for boundary in found.boundaries]
    tokens, positions = tokenizer.tokenize_with_positions(rendered, offsets)
    assert tokens.tolist() == tokenizer.tokenize_prompt(rendered)
    vocab = FakeVocab()
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(vocab.token_bytes(token)))
    assert [starts[pos] for pos in positions] == [
        len(rendered.text[:offset].encode()) for offset in offsets
    ]


def _check_prompt(name: str, rendered: str, conversation: Conversation) -> None:
    """Check that the last user message, and each argument of the last tool call, is there."""
    texts = [m["content"].strip() for m in conversation.messages if m["role"] == "user"]
    assert texts[-1] in rendered
    calls = [call for m in conversation.messages for call in m.get("tool_calls", ())]
    if not calls or name in WITHOUT_CALLS:
        return
    for key, value in calls[-1]["function"]["arguments"].items():
        assert key in rendered
        assert f"'{key}': " not in rendered, "an object was printed as Python"
        if isinstance(value, str) and value.isprintable() and not set('"\\') & set(value):
            assert value in rendered

"""Positions of boundaries with a real vocabulary, whose tokens are merged over their edges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import models
from tests.unit.chat.prompts.test_boundaries import SESSION

from milepost import libllama
from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.prompts.boundaries import BoundaryFinder
from milepost.chat.prompts.tokenizer import PromptTokenizer
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet
from milepost.libllama.vocab import Vocab


@pytest.fixture
def vocab(smollm2_path: Path) -> Iterator[Vocab]:
    params = libllama.ModelParams(vocab_only=True)
    with libllama.Model(libllama.open_library(), smollm2_path, params) as model:
        yield model.vocab


@pytest.mark.parametrize(
    "source", [models.DEFAULT_TEMPLATE, "{% for m in messages %}{{ m.content }}{% endfor %}"]
)
def test_positions_are_the_last_token_edges_before_offsets(vocab: Vocab, source: str) -> None:
    template = ChatTemplate(source, name="test", texts=SpecialTexts.of(vocab))
    conversation = make_conversation(SESSION)
    rendered = template.render(conversation)
    found = BoundaryFinder(TemplateSet(template)).find_boundaries(conversation, rendered)
    offsets = [boundary.offset for boundary in found.boundaries]
    tokenizer = PromptTokenizer(vocab)
    tokens, positions = tokenizer.tokenize_with_positions(rendered, offsets)
    assert len(positions) >= len(SESSION)
    assert tokens.tolist() == tokenizer.tokenize_prompt(rendered)
    for offset, pos in zip(offsets, positions, strict=True):
        before = b"".join(vocab.token_bytes(token) for token in tokens[:pos])
        to_be_reached = rendered.text[:offset].encode()
        assert to_be_reached.startswith(before)
        next_end = len(before) + len(vocab.token_bytes(tokens[pos])) if pos < len(tokens) else None
        assert next_end is None or next_end > len(to_be_reached)

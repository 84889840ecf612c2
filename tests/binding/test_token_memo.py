"""The token memo with real vocabularies, which merge text and know many control tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import models
from tests.unit.chat.prompts.test_token_memo import SMALL, draw_cases

from milepost import libllama
from milepost.chat.prompts.tokenizer import PromptTokenizer, SeamProbe


@pytest.fixture(params=["tiny", "smollm2"])
def model_path(request: pytest.FixtureRequest) -> Path:
    if request.param == "smollm2":
        path: Path = request.getfixturevalue("smollm2_path")
        return path
    tiny_models: dict[models.Kind, Path] = request.getfixturevalue("tiny_models")
    return tiny_models["full"]


def test_conversations_get_the_tokens_of_a_tokenizer_that_remembers_nothing(
    model_path: Path,
) -> None:
    params = libllama.ModelParams(vocab_only=True)
    with libllama.Model(libllama.open_library(), model_path, params) as model:
        tokenizer = PromptTokenizer(model.vocab, SMALL)
        for prompt, offsets in draw_cases(model.vocab, 0, 60):
            expected = PromptTokenizer(model.vocab).tokenize_with_positions(prompt, offsets)
            assert tokenizer.tokenize_with_positions(prompt, offsets) == expected
            if not prompt.marks:
                assert expected[0].tolist() == model.vocab.tokenize(
                    prompt.text, add_special=False, parse_special=True
                )
        assert SeamProbe(model.vocab).is_seam("<|im_start|>")

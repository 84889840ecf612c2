"""The tiny models behave as `tests.models` promises, in the pinned library."""

from pathlib import Path

import numpy as np
import pytest
from tests import models

from milepost import libllama

NUM_TOKENS = 40
PROMPT = "<|im_start|>user\nWhat is the time?<|im_end|>\n<|im_start|>assistant\n"


def decode_greedily(path: Path, prompt: str) -> tuple[str, int]:
    """Return the text of NUM_TOKENS tokens, and how many of them end a turn."""
    library = libllama.open_library()
    params = libllama.ContextParams(512, 128, 64, 1, 1, 1)
    with (
        libllama.Model(library, path, libllama.ModelParams()) as model,
        libllama.Context(model, params) as context,
    ):
        vocab, batch = model.vocab, libllama.Batch(library, 128)
        tokens = vocab.tokenize(prompt, add_special=False, parse_special=True)
        row, answer = batch.add_tokens(tokens, 0, 0, wants_last=True), list[int]()
        for pos in range(len(tokens), len(tokens) + NUM_TOKENS):
            context.decode(batch)
            answer.append(int(np.argmax(context.logits(row))))
            batch.clear_rows()
            row = batch.add_token(answer[-1], pos, 0)
        text = vocab.detokenize(answer, special=False)
        return text, answer.count(models.token_id(models.TURN_END))


@pytest.mark.parametrize("kind", models.KINDS)
def test_answers_are_long_and_printable(
    tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> None:
    text, num_ends = decode_greedily(tiny_models[kind], PROMPT)
    assert num_ends == 0
    assert len(text) >= NUM_TOKENS
    assert text.replace("\n", " ").isprintable()


@pytest.mark.parametrize("kind", models.KINDS)
def test_answers_depend_on_the_whole_prompt(
    tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> None:
    first, _ = decode_greedily(tiny_models[kind], "A" + PROMPT)
    second, _ = decode_greedily(tiny_models[kind], "B" + PROMPT)
    assert first != second


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("the thing", [b"the", b" ", b"th", b"ing"]),
        (" you<|im_end|>", [b" you", b"<|im_end|>"]),
        ("é\n", [b"\xc3", b"\xa9", b"\n"]),
        ("<think>is</think>", [b"<think>", b"is", b"</think>"]),
    ],
)
def test_vocabulary_merges_and_knows_special_tokens(
    tiny_models: dict[models.Kind, Path], text: str, pieces: list[bytes]
) -> None:
    params = libllama.ModelParams(vocab_only=True)
    with libllama.Model(libllama.open_library(), tiny_models["full"], params) as model:
        tokens = model.vocab.tokenize(text, add_special=True, parse_special=True)
        assert [model.vocab.token_bytes(token) for token in tokens] == pieces

"""A tiny SentencePiece vocabulary, as models of Llama 2's kind have it, for `tests.models`.

It puts a space in front of every text (`add_space_prefix`), spells spaces as "▁", and has a token
for each byte that nothing else spells.
"""

from __future__ import annotations

import string
from pathlib import Path

import gguf

from tests.models import Recipe, Vocabulary, write_recipe

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
SPACE = "▁"  # U+2581
# Joined where they stand in a text; the first ones first.
PIECES = (
    *(f"{SPACE}{text}" for text in ('"', "{", "4", "the", "<", "t", "a", "yes")),
    *('":', '{"', '",', "th", "the", "42", "er", "in", "es", "yes", "</", "ab"),
)


def sentencepiece_vocabulary(adds_space: bool) -> Vocabulary:
    """Return the vocabulary; without `adds_space` texts stay as they are (Gemma)."""
    tokens = [UNKNOWN, BEGIN, END, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = string.ascii_letters + string.digits + string.punctuation
    pieces = [*PIECES, SPACE, *letters]

    def add_to(writer: gguf.GGUFWriter) -> None:
        kinds = gguf.TokenType
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([*tokens, *pieces])
        writer.add_token_scores([0.0] * len(tokens) + [-float(i) for i in range(len(pieces))])
        writer.add_token_types(
            [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
            + [kinds.BYTE] * 256
            + [kinds.NORMAL] * len(pieces)
        )
        writer.add_bos_token_id(tokens.index(BEGIN))
        writer.add_eos_token_id(tokens.index(END))
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(adds_space)

    return Vocabulary([*tokens, *pieces], add_to)


def write_model(path: Path, *, adds_space: bool = True) -> Path:
    """Write a tiny model with this vocabulary to `path`, and return it."""
    return write_recipe(Recipe("full", vocabulary=sentencepiece_vocabulary(adds_space)), path)

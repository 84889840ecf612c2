"""Texts become tokens and come back, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import models, sentencepiece

from milepost.errors import InvalidRequest
from milepost.libllama import Library, Model, ModelParams, Vocab

TEXTS = [
    "",
    "plain text",
    "  spaces \n\n\t and tabs ",
    "naïve 日本語 🎉👩‍👩‍👧",
    "nul \0 in the middle\0",
    "\ufeffbyte order mark\u2028",
    "a" * 5000,
    "<|im_start|>user\n<think>",
    "\x00",
]


def tokens(vocab: Vocab, text: str, *, parse_special: bool = False) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=parse_special)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("parse_special", [True, False])
def test_round_trip(vocab: Vocab, text: str, parse_special: bool) -> None:
    found = tokens(vocab, text, parse_special=parse_special)
    assert vocab.detokenize(found, special=True) == text
    assert b"".join(map(vocab.token_bytes, found)) == text.encode()


def test_every_code_point_plane_round_trips(vocab: Vocab) -> None:
    text = "".join(chr(code) for code in range(0x20, 0x11_0000, 997) if not 0xD800 <= code < 0xE000)
    assert vocab.detokenize(tokens(vocab, text), special=True) == text


def test_no_text_is_no_token(vocab: Vocab) -> None:
    assert tokens(vocab, "") == []
    assert vocab.detokenize([], special=True) == ""


def test_lone_surrogates_become_replacement_characters(vocab: Vocab) -> None:
    assert vocab.detokenize(tokens(vocab, "a\ud800b"), special=True) == "a\ufffdb"
    assert vocab.detokenize(tokens(vocab, "\udfff"), special=True) == "\ufffd"


def test_a_surrogate_pair_is_one_character(vocab: Vocab) -> None:
    assert vocab.detokenize(tokens(vocab, "\ud83c\udf89"), special=True) == "🎉"


def test_control_tokens_are_parsed_only_when_asked_for(vocab: Vocab) -> None:
    end = models.token_id(models.TURN_END)
    assert tokens(vocab, models.TURN_END, parse_special=True) == [end]
    plain = tokens(vocab, models.TURN_END)
    assert end not in plain
    assert len(plain) > 1


def test_control_tokens_are_rendered_only_when_asked_for(vocab: Vocab) -> None:
    end = models.token_id(models.TURN_END)
    assert vocab.token_bytes(end) == models.TURN_END.encode()
    assert vocab.token_bytes(end, special=False) == b""
    assert vocab.detokenize([end, models.token_id("a")], special=False) == "a"


def test_control_texts(vocab: Vocab) -> None:
    assert vocab.control_texts() == {text: models.token_id(text) for text in models.CONTROL_TOKENS}
    assert all(map(vocab.is_control, vocab.control_texts().values()))
    assert not vocab.is_control(models.token_id("<think>"))


def test_named_tokens(vocab: Vocab) -> None:
    assert (vocab.bos_text, vocab.eos_text) == (models.END_OF_TEXT, models.TURN_END)
    assert vocab.bos_token == models.token_id(models.END_OF_TEXT)
    assert vocab.eos_token == models.token_id(models.TURN_END)
    assert vocab.eog_tokens == {vocab.bos_token, vocab.eos_token}
    assert not vocab.adds_bos
    assert vocab.suppressed_tokens == ()


def test_a_character_may_span_tokens(vocab: Vocab) -> None:
    pieces = [vocab.token_bytes(token) for token in tokens(vocab, "é")]
    assert pieces == [b"\xc3", b"\xa9"]
    assert vocab.detokenize(tokens(vocab, "é")[:1], special=True) == "\ufffd"


def test_tokens_outside_the_vocabulary(vocab: Vocab) -> None:
    for token in (-1, vocab.num_tokens, 2**31 - 1):
        assert vocab.token_bytes(token) == b""
        with pytest.raises(InvalidRequest, match=f"token {token} is not in the vocabulary"):
            vocab.check_tokens([0, token])
    vocab.check_tokens([0, vocab.num_tokens - 1])


def test_all_pieces_are_those_of_single_tokens(vocab: Vocab) -> None:
    assert list(vocab.read_all_token_bytes()) == [
        vocab.token_bytes(token) for token in range(vocab.num_tokens)
    ]


def test_control_tokens_are_those_that_steer_the_model(vocab: Vocab) -> None:
    spelled = {vocab.token_bytes(token).decode() for token in vocab.control_tokens}
    assert spelled == set(models.CONTROL_TOKENS)


@pytest.fixture(params=[True, False], ids=["puts a space", "puts none"])
def sentencepiece_vocab(
    request: pytest.FixtureRequest, library: Library, tmp_path: Path
) -> Iterator[Vocab]:
    path = sentencepiece.write_model(tmp_path / "sp.gguf", adds_space=request.param)
    with Model(library, path, ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.mark.parametrize("text", ["", '"42"', "the", " the", "</s>", "ü", "\n", "\x02a"])
def test_a_text_that_goes_on_gets_no_space(sentencepiece_vocab: Vocab, text: str) -> None:
    found = sentencepiece_vocab.tokenize_continuation(text, parse_special=False)
    assert b"".join(map(sentencepiece_vocab.token_bytes, found)) == text.encode()


def test_a_control_token_that_goes_on_is_one(sentencepiece_vocab: Vocab) -> None:
    end = sentencepiece_vocab.eos_token
    assert sentencepiece_vocab.tokenize_continuation("</s>", parse_special=True) == [end]
    assert sentencepiece_vocab.tokenize_continuation("</s>", parse_special=False) != [end]

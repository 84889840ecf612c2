"""However the bytes of a text are cut into tokens, the text is the same and no character splits."""

from __future__ import annotations

import random

import pytest

from milepost.engine.detokenizer import Detokenizer

TEXTS = ["plain", "naïve façade", "日本語テキスト", "🎉👩‍👩‍👧 family", "mixed é日🎉\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_every_pair_of_cuts_gives_the_same_text(text: str) -> None:
    data = text.encode()
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            detokenizer = Detokenizer()
            parts = [data[:first], data[first:second], data[second:]]
            pieces = [detokenizer.feed(part) for part in parts]
            assert "".join(pieces) == text
            assert "\ufffd" not in "".join(pieces)


def test_byte_by_byte_a_character_comes_with_its_last_byte() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(bytes([byte])) for byte in "é🎉".encode()] == [
        "",
        "é",
        "",
        "",
        "",
        "🎉",
    ]


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"a\xffb") == "a\ufffdb"
    assert detokenizer.feed(b"\xe2\x82") == ""
    assert detokenizer.feed(b"c") == "\ufffdc"


def test_random_bytes_in_any_cut_give_what_a_decoder_gives_at_once() -> None:
    randoms = random.Random(3)
    for _ in range(500):
        data = bytes(randoms.choices([*b"ab", 0xC3, 0xA9, 0xF0, 0x9F, 0x8E, 0x89], k=20)) + b"end"
        detokenizer, text, start = Detokenizer(), "", 0
        while start < len(data):
            end = start + randoms.randint(1, 4)
            text += detokenizer.feed(data[start:end])
            start = end
        assert text == data.decode(errors="replace")

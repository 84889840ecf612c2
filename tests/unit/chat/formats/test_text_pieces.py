"""Comparing texts of templates without cutting a marker in two."""

from __future__ import annotations

import pytest

from milepost.chat.formats.text_pieces import last_marker, shared_end, shared_start, split_pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<tool_call>\nname", ["<tool_call>", "\n", "name"]),
        ("<｜tool▁sep｜>{", ["<｜tool▁sep｜>", "{"]),
        ("[ARGS]{", ["[ARGS]", "{"]),
        ("⟦ein aus⟧ x", ["⟦ein aus⟧", " ", "x"]),
        ('<a b="', ["<", "a", " ", "b", "=", '"']),
    ],
)
def test_markers_are_pieces(text: str, pieces: list[str]) -> None:
    assert split_pieces(text) == pieces


def test_comparisons_stop_before_a_marker_that_differs() -> None:
    assert shared_start("\n</call><|end|>", "\n</call><|eot|>") == "\n</call>"
    assert shared_end("<|begin|><|call|>f.", "<|end|><|call|>f.") == "<|call|>f."
    assert shared_end("(begin)(call)", "(end)(call)") == "(call)"


def test_a_closing_bracket_may_begin_what_is_shared() -> None:
    assert shared_end("]~b]do", "x]~b]do") == "]~b]do"


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("<|turn>model\n<|channel>thought\n", "<|channel>thought"),
        ("<|open|>reply<|sep|><|open|>think<|sep|>", "<|open|>think<|sep|>"),
        ("no tags", "tags"),
        ("", ""),
    ],
)
def test_the_last_marker_is_one_that_occurs_once(text: str, marker: str) -> None:
    assert last_marker(text) == marker

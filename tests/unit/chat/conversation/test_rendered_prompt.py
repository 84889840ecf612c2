"""A rendered prompt: no way of taking a part of it lets a spelled control token become one."""

from __future__ import annotations

import inspect
import itertools
from array import array
from collections.abc import Callable, Iterable

import pytest

from milepost.chat.conversation.rendered_prompt import (
    ControlTexts,
    RenderedPrompt,
    TokenSpan,
    first_difference,
)

CONTROLS = ControlTexts(["<|im_start|>", "<|im_end|>"])
# The first <|im_end|> is a user's; the others, and all <|im_start|>, are the template's.
TEXT = "<|im_start|>a<|im_end|>b<|im_end|><|im_start|>c<|im_end|>"
SPELLED = range(13, 23)
GUARDED = RenderedPrompt(TEXT, marks=(14,))
REPLY = TokenSpan(46, 47, array("i", [7]))

# How a prompt, or parts of one, are made from a prompt; each with where the parts begin in it.
WAYS: dict[str, Callable[[RenderedPrompt, int, int], Iterable[tuple[RenderedPrompt, int]]]] = {
    "part": lambda prompt, start, end: [(prompt.part(start, end), start)],
    "with_spans": lambda prompt, start, end: [(prompt.with_spans([REPLY]), 0)],
    "parts_between_spans": lambda prompt, start, end: [
        (part.prompt, part.start)
        for part in prompt.with_spans(
            [TokenSpan(start, end, array("i", [7]))]
        ).parts_between_spans()
    ],
}


@pytest.mark.parametrize("name", WAYS)
def test_no_part_of_a_prompt_has_a_control_token_that_the_prompt_has_not(name: str) -> None:
    real = set(CONTROLS.token_spans(GUARDED))
    assert (SPELLED.start, SPELLED.stop) not in real
    for start, end in itertools.combinations(range(len(TEXT) + 1), 2):
        for part, offset in WAYS[name](GUARDED, start, end):
            found = {(a + offset, b + offset) for a, b in CONTROLS.token_spans(part)}
            assert found <= real
            whole = range(offset, offset + len(part.text))
            assert found == {(a, b) for a, b in real if a in whole and b - 1 in whole}


def test_each_way_to_make_a_prompt_of_another_one_is_tried() -> None:
    methods = inspect.getmembers(RenderedPrompt, inspect.isfunction)
    makers = {
        name
        for name, method in methods
        if "Part" in str(inspect.signature(method).return_annotation)
    } | {
        name
        for name, method in methods
        if inspect.signature(method).return_annotation == "RenderedPrompt"
    }
    assert makers == set(WAYS)


def test_a_prompt_is_no_text_that_could_be_cut() -> None:
    assert not isinstance(GUARDED, str)
    with pytest.raises(TypeError):
        GUARDED[3:]  # type: ignore[index]
    with pytest.raises(TypeError):
        RenderedPrompt(TEXT)  # type: ignore[call-arg]


def test_marks_are_known_by_where_they_are() -> None:
    assert GUARDED.is_marked(SPELLED.start, SPELLED.stop)
    assert not GUARDED.is_marked(14, 23)
    assert not GUARDED.is_marked(0, 14)


def test_a_trusted_text_has_all_its_control_tokens() -> None:
    found = list(CONTROLS.token_spans(RenderedPrompt.of_trusted(TEXT)))
    assert (SPELLED.start, SPELLED.stop) in found


def test_a_part_has_the_spans_that_are_whole_in_it() -> None:
    spans = tuple(TokenSpan(start, start + 3, array("i", [start])) for start in (0, 3, 10, 20))
    prompt = RenderedPrompt("x" * 30, (), spans)
    part = prompt.part(1, 22)
    assert [(span.start, span.end, span.tokens[0]) for span in part.spans] == [
        (2, 5, 3),
        (9, 12, 10),
    ]
    assert prompt.part(0) == prompt
    assert prompt.part(3).spans[0].start == 0


def test_spans_are_brought_into_the_order_of_the_text() -> None:
    media = TokenSpan(5, 10, array("i"))
    prompt = RenderedPrompt("x" * 60, (), (media,)).with_spans(
        [REPLY, TokenSpan(1, 2, REPLY.tokens)]
    )
    assert [span.start for span in prompt.spans] == [1, 5, 46]
    assert prompt.media == (media,)
    assert first_difference(prompt.spans, prompt.spans[:2]) == 46

"""Raw prompts: texts, tokens and both mixed."""

from __future__ import annotations

import pytest
from tests.fakes.vocab import END_OF_TEXT, IM_END, FakeVocab

from milepost.chat.prompts.raw_prompts import tokenize_around, tokenize_mixed, tokenize_raw
from milepost.errors import InvalidRequest


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [[END_OF_TEXT, 97, 98]]),
        ("<|endoftext|>a", [[END_OF_TEXT, 97]]),
        ("<|im_end|>", [[END_OF_TEXT, IM_END]]),
        (["a", "b"], [[END_OF_TEXT, 97], [END_OF_TEXT, 98]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([1, "a", 2], [[1, 97, 2]]),
        (["a", 2, "b"], [[END_OF_TEXT, 97, 2, 98]]),
        (["a", [1], ["b", 2]], [[END_OF_TEXT, 97], [1], [END_OF_TEXT, 98, 2]]),
        ({"prompt_string": "a"}, [[END_OF_TEXT, 97]]),
        ([{"prompt_string": "a"}, "b"], [[END_OF_TEXT, 97], [END_OF_TEXT, 98]]),
        ("", [[END_OF_TEXT]]),
        ("\ud800", [[END_OF_TEXT, *b"?"]]),
    ],
)
def test_raw_prompts(prompt: object, tokens: list[list[int]]) -> None:
    assert tokenize_raw(FakeVocab(adds_bos=True), prompt) == tokens


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "prompt is an empty list"),
        ("", "prompt is empty; send at least one token"),
        ([[1], []], "prompt[1] is empty"),
        (None, "prompt must be a string, or a list of strings and token ids, but holds null"),
        (7.5, "but holds a value of type float"),
        ([1, True], "but holds a value of type bool"),
        ([[1, [2]]], "prompt[0] must be a string, or a list of strings and token ids"),
        ([1, -1], "prompt[1] is token -1, but the model has tokens 0 to 262 only"),
        ([[1], [263]], "prompt[1][0] is token 263, but the model has tokens 0 to 262 only"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "prompt has multimodal_data, which"),
        ({"text": "a"}, "but holds null"),
    ],
)
def test_bad_raw_prompts_get_one_sentence(prompt: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        tokenize_raw(FakeVocab(), prompt)
    assert said in str(raised.value)
    assert raised.value.param == "prompt"


@pytest.mark.parametrize("first", ["a", "<|endoftext|>a"])
def test_a_prompt_around_media_has_one_bos(first: str) -> None:
    vocab = FakeVocab(adds_bos=True)
    assert tokenize_around(vocab, [first, "b", ""]) == [[END_OF_TEXT, 97], [98], []]


def test_mixed_content_is_tokenised_as_asked() -> None:
    vocab = FakeVocab(adds_bos=True)
    content = ["<|im_end|>", 7, "a"]
    assert tokenize_mixed(vocab, content, add_special=True, parse_special=True) == [
        *(END_OF_TEXT, IM_END, 7, 97)
    ]
    assert tokenize_mixed(vocab, content, add_special=False, parse_special=False) == [
        *(*b"<|im_end|>", 7, 97)
    ]
    assert tokenize_mixed(vocab, "", add_special=False, parse_special=True) == []
    with pytest.raises(InvalidRequest) as raised:
        tokenize_mixed(vocab, [999], add_special=False, parse_special=True)
    assert raised.value.param == "content"

"""What becomes of replies in histories is learnt by variables, and read by boundaries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.published import read_template
from tests.unit.chat import families

from milepost.chat.templates.history_probe import HistoryProfile
from milepost.chat.templates.template import ChatTemplate

THINKING = families.CHATML_TOOLS


def learn(source: str, *, has_tools: bool = False, **variables: Any) -> HistoryProfile:
    template = ChatTemplate(source, name="test")
    return template.profile.history(variables, has_tools=has_tools)


def test_reasoning_that_goes_when_the_user_speaks_is_noticed() -> None:
    assert learn(THINKING).drops_reasoning
    assert not learn(families.INST_ALTERNATING).drops_reasoning


def test_replies_that_are_rewritten_depend_on_variables_and_on_what_the_client_sends() -> None:
    thinking, empty = learn(THINKING), learn(THINKING, enable_thinking=False)
    assert not thinking.learn_rewrites("user", has_reasoning=False)
    assert empty.learn_rewrites("user", has_reasoning=False)


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize(
    ("name", "trailer"),
    [
        ("Qwen3-Coder", "<|im_end|>\n"),  # its text about tools has the word "answer"
        ("Qwen3.5-4B", "<|im_end|>\n"),
        ("meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>"),
        ("Qwen-Qwen3-0.6B", "<|im_end|>\n"),
    ],
)
def test_what_ends_a_reply_is_found_after_its_text(
    name: str, trailer: str, has_tools: bool
) -> None:
    assert learn(read_template(name), has_tools=has_tools).reply_trailer == trailer


def test_what_is_not_shown_is_not_known() -> None:
    assert learn("{{ raise_exception('no') }}").reply_trailer is None
    assert not learn("{{ raise_exception('no') }}").learn_rewrites("user", has_reasoning=True)

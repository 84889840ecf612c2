"""Reasoning that uses up its tokens is ended by the engine, and the reply goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import RunningEngine, prompt_tokens

from milepost.protocol.messages import ReasoningLimit
from milepost.protocol.sampling import SamplingParams

PROMPT = prompt_tokens(40)
END = models.token_id("</think>")
ENDING = (models.token_id("."), END)


def limit(max_tokens: int, *, is_open: bool = True) -> ReasoningLimit:
    return ReasoningLimit(
        start="<think>", end="</think>", is_open=is_open, max_tokens=max_tokens, ending=ENDING
    )


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": 1, "ignore_eos": True, **fields})


@pytest.mark.parametrize("kind", models.KINDS)
def test_open_reasoning_is_ended_after_its_budget(engines: Engines, kind: models.Kind) -> None:
    free = engines(kind).ask(PROMPT, max_tokens=20, sampling=params())
    answer = engines(kind).ask(PROMPT, max_tokens=20, sampling=params(), reasoning=limit(5))
    assert answer.tokens[:5] == free.tokens[:5]
    assert tuple(answer.tokens[5:7]) == ENDING
    assert ".</think>" in answer.text
    assert END not in answer.tokens[7:]
    assert answer.end.timings.predicted_n == len(answer.tokens) == 20


def test_no_budget_ends_reasoning_at_once(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=6, sampling=params(), reasoning=limit(0))
    assert tuple(answer.tokens[:2]) == ENDING
    again = full.ask(PROMPT, max_tokens=6, sampling=params(), reasoning=limit(0))
    assert again.tokens == answer.tokens  # with the logits of the prompt known already


def test_reasoning_that_the_reply_begins_has_the_same_budget(full: RunningEngine) -> None:
    grammar = 'start: "ab<think>" /(.|\\n)*/'
    answer = full.ask(
        PROMPT,
        max_tokens=30,
        sampling=params(),
        constraint=grammar,
        reasoning=limit(4, is_open=False),
    )
    thought = answer.text.partition("<think>")[2].partition("</think>")[0]
    assert thought.endswith(".")
    assert answer.tokens.count(END) == 1
    assert answer.tokens.index(END) <= len("ab<think>") + 5


def test_no_character_is_cut(full: RunningEngine) -> None:
    accents = params(logit_bias=((models.token_id("."), float("-inf")),))
    grammar = 'start: /é+/ ".</think>" /(.|\\n)*/'
    for num_tokens in range(2, 6):
        answer = full.ask(
            PROMPT,
            max_tokens=20,
            sampling=accents,
            constraint=grammar,
            reasoning=limit(num_tokens),
        )
        thought = answer.text.partition(".</think>")[0]
        assert thought == "é" * -(-num_tokens // 2)  # a character has two tokens here


def test_a_constraint_that_takes_no_end_marker_wins(full: RunningEngine) -> None:
    for fields in (
        {"sampling": params(), "constraint": "start: /[a-f]{9}/"},
        {"sampling": params(grammar="root ::= [a-f]{9}")},
    ):
        answer = full.ask(PROMPT, max_tokens=20, reasoning=limit(2), **fields)
        assert len(answer.text) == 9
        assert set(answer.text) <= set("abcdef")


def test_what_was_forced_is_in_the_context(full: RunningEngine) -> None:
    prompt = prompt_tokens(60, seed=5)
    answer = full.ask(prompt, max_tokens=12, sampling=params(), reasoning=limit(3))
    longer = full.ask([*prompt, *answer.tokens, *prompt_tokens(8, seed=6)], max_tokens=1)
    assert longer.end.timings.cache_n >= len(prompt) + len(answer.tokens) - 1

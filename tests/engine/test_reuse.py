"""What a slot holds is not computed again, and an answer never depends on what was reused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import Answer, RunningEngine, check_same, prompt_tokens

from milepost.protocol.sampling import SamplingParams

WHOLE_ONLY: tuple[models.Kind, ...] = ("window", "recurrent", "hybrid")
NUM_STEPS = 30


def ask_both(engine: RunningEngine, fresh: RunningEngine, tokens: list[int]) -> Answer:
    """Return an answer after comparing it with one that reuses nothing."""
    answer = engine.ask(tokens, max_tokens=4, num_logprobs=10)
    expected = fresh.ask(tokens, max_tokens=4, num_logprobs=10, cache_prompt=False)
    assert expected.end.timings.cache_n == 0
    check_same(answer, expected)
    timings = answer.end.timings
    assert timings.cache_n + timings.prompt_n == len(tokens)
    return answer


@pytest.mark.parametrize("kind", models.KINDS)
def test_an_extension_computes_only_what_is_new(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    engine, prompt = engines(kind), prompt_tokens(200, seed=20)
    first = ask_both(engine, fresh_engines(kind), prompt)
    longer = prompt + first.tokens + prompt_tokens(30, seed=21)
    answer = ask_both(engine, fresh_engines(kind), longer)
    # All but the last sampled token, which was never computed.
    assert answer.end.timings.cache_n == len(prompt) + len(first.tokens) - 1


def test_an_edit_reuses_all_before_it(engines: Engines, fresh_engines: Engines) -> None:
    prompt = prompt_tokens(200, seed=22)
    ask_both(engines("full"), fresh_engines("full"), prompt)
    edited = prompt[:150] + prompt_tokens(50, seed=23)
    answer = ask_both(engines("full"), fresh_engines("full"), edited)
    assert answer.end.timings.cache_n == 150


@pytest.mark.parametrize("kind", WHOLE_ONLY)
def test_an_edit_of_what_cannot_be_cut_is_computed_anew(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    prompt = prompt_tokens(200, seed=22)
    ask_both(engines(kind), fresh_engines(kind), prompt)
    edited = prompt[:150] + prompt_tokens(50, seed=23)
    assert ask_both(engines(kind), fresh_engines(kind), edited).end.timings.cache_n == 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_the_same_prompt_again_computes_nothing(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    prompt = prompt_tokens(100, seed=24)
    first = ask_both(engines(kind), fresh_engines(kind), prompt)
    again = ask_both(engines(kind), fresh_engines(kind), prompt)
    assert (again.end.timings.cache_n, again.end.timings.prompt_n) == (100, 0)
    assert again.end.cache is not None
    assert again.end.cache.reason == "extended"
    assert again.tokens == first.tokens


def test_choices_of_a_known_prompt_are_drawn_one_by_one(engines: Engines) -> None:
    engine, prompt = engines("hybrid"), prompt_tokens(100, seed=27)
    warm = SamplingParams(temperature=3.0, seed=1, ignore_eos=True)
    fields: dict[str, Any] = {"max_tokens": 6, "num_choices": 3, "sampling": warm}
    first = engine.ask(prompt, **fields)
    again = engine.ask(prompt, **fields)
    assert again.end.timings.prompt_n == 0
    assert [choice.tokens for choice in again.choices] == [c.tokens for c in first.choices]
    assert len({tuple(choice.tokens) for choice in again.choices}) == 3


def test_a_grammar_holds_for_the_first_token_of_a_known_prompt(engines: Engines) -> None:
    engine, prompt = engines("hybrid"), prompt_tokens(100, seed=28)
    engine.ask(prompt, max_tokens=1)
    digits = SamplingParams(temperature=0.0, grammar="root ::= [0-9]+")
    answer = engine.ask(prompt, max_tokens=2, sampling=digits)
    assert answer.end.timings.prompt_n == 0
    assert answer.text.isdigit()


def test_nothing_is_reused_when_it_is_not_wanted(engines: Engines) -> None:
    prompt = prompt_tokens(100, seed=25)
    engines("full").ask(prompt, max_tokens=1)
    answer = engines("full").ask(prompt, max_tokens=1, cache_prompt=False)
    assert answer.end.timings.cache_n == 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_side_conversation_leaves_the_main_one_where_it_is(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    engine, fresh = engines(kind), fresh_engines(kind)
    main = prompt_tokens(300, seed=26)
    main += ask_both(engine, fresh, main).tokens
    ask_both(engine, fresh, main[:20] + prompt_tokens(30, seed=27))
    answer = ask_both(engine, fresh, main + prompt_tokens(10, seed=28))
    assert answer.end.timings.cache_n == len(main) - 1


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_running_sequence_is_forked(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    """Two requests with one long prompt, one of them longer: sent while the first decodes."""
    engine, prompt = engines(kind), prompt_tokens(700, seed=29)
    fields = {"num_logprobs": 10, "cache_prompt": False}
    expected = [fresh_engines(kind).ask(prompt, max_tokens=n, **fields) for n in (60, 4)]
    answers = engine.ask_all(
        {"tokens": prompt, "max_tokens": 60, "num_logprobs": 10},
        {"tokens": prompt, "max_tokens": 4, "num_logprobs": 10},
    )
    for answer, alone in zip(answers, expected, strict=True):
        check_same(answer, alone)


@dataclass
class Walk:
    """Conversations that are gone on with, edited and branched at random."""

    randoms: random.Random
    conversations: list[list[int]] = field(default_factory=list)

    def next_prompt(self) -> tuple[int, list[int]]:
        """Return the number of a conversation and its next prompt."""
        new = self._some_tokens()
        if not self.conversations or self.randoms.random() < 0.1:
            self.conversations.append([])
            return len(self.conversations) - 1, new
        number = self.randoms.randrange(len(self.conversations))
        held = self.conversations[number]
        action = self.randoms.choice(["append", "append", "edit", "branch"])
        if action == "append" and len(held) < 600:
            return number, held + new
        prompt = held[: self.randoms.randint(0, len(held))] + new
        if action == "branch":
            self.conversations.append([])
            return len(self.conversations) - 1, prompt
        return number, prompt

    def _some_tokens(self) -> list[int]:
        letters = models.token_id("a")
        return [letters + self.randoms.randrange(26) for _ in range(self.randoms.randint(1, 60))]


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_random_walk_never_answers_otherwise(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    walk = Walk(random.Random(31))
    num_cached = 0
    for _ in range(NUM_STEPS):
        number, prompt = walk.next_prompt()
        answer = ask_both(engines(kind), fresh_engines(kind), prompt)
        walk.conversations[number] = prompt + answer.tokens
        num_cached += answer.end.timings.cache_n
    assert num_cached > 500
    assert engines(kind).is_idle

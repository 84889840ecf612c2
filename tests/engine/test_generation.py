"""What an engine answers, and what its counters say about it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import GREEDY, RunningEngine, check_same, logprobs, prompt_tokens

from milepost.errors import ContextExceeded, InvalidRequest
from milepost.protocol.sampling import DEFAULT_SAMPLERS, SamplingParams

PROMPT = prompt_tokens(40)


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"ignore_eos": True, "seed": 1, **fields})


@pytest.mark.parametrize("kind", models.KINDS)
def test_greedy_answers_are_the_same_twice(engines: Engines, kind: models.Kind) -> None:
    engine = engines(kind)
    first, second = (engine.ask(PROMPT, max_tokens=20, cache_prompt=False) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.text == second.text
    assert len(first.tokens) == first.end.timings.predicted_n == 20
    assert (first.reason, first.end.num_prompt_tokens) == ("limit", len(PROMPT))
    assert (first.end.timings.cache_n, first.end.timings.prompt_n) == (0, len(PROMPT))


@pytest.mark.parametrize("kind", models.KINDS)
def test_choices_share_one_prefill_and_differ_by_seed(engines: Engines, kind: models.Kind) -> None:
    engine, prompt = engines(kind), prompt_tokens(1500, seed=3)
    before = engine.counters()
    answer = engine.ask(prompt, num_choices=4, max_tokens=12, sampling=sampling(temperature=1.5))
    after = engine.counters()
    assert after.num_prefilled_tokens - before.num_prefilled_tokens == len(prompt)
    assert after.num_decoded_tokens - before.num_decoded_tokens == 48
    assert [choice.reason for choice in answer.choices] == ["limit"] * 4
    assert len({choice.text for choice in answer.choices}) == 4
    assert engine.is_idle


@pytest.mark.parametrize("kind", models.KINDS)
def test_greedy_choices_are_all_what_one_alone_is(engines: Engines, kind: models.Kind) -> None:
    engine = engines(kind)
    alone = engine.ask(PROMPT, max_tokens=10, cache_prompt=False, num_logprobs=5)
    answer = engine.ask(PROMPT, max_tokens=10, num_choices=3, num_logprobs=5)
    for choice in answer.choices:
        check_same(type(answer)([choice]), alone)


def test_the_first_choice_is_what_its_seed_gives_alone(full: RunningEngine) -> None:
    fields = {"max_tokens": 8, "sampling": sampling(seed=5, temperature=1.2)}
    three = full.ask(PROMPT, num_choices=3, **fields)
    fields["sampling"] = sampling(seed=7, temperature=1.2)
    assert full.ask(PROMPT, **fields).tokens == three.choices[2].tokens


def test_the_same_seed_gives_the_same_answer(full: RunningEngine) -> None:
    fields = {"max_tokens": 20, "cache_prompt": False}
    answers = [
        full.ask(PROMPT, sampling=sampling(seed=seed, temperature=1.5), **fields).tokens
        for seed in (11, 11, 12)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_without_a_seed_answers_differ(full: RunningEngine) -> None:
    params = SamplingParams(temperature=1.5, ignore_eos=True)
    answers = {full.ask(PROMPT, max_tokens=20, sampling=params).text for _ in range(3)}
    assert len(answers) == 3


def test_no_tokens_wanted_is_a_prefill_alone(full: RunningEngine) -> None:
    answer = full.ask(prompt_tokens(50, seed=9), max_tokens=0)
    assert (answer.reason, answer.tokens, answer.text) == ("limit", [], "")
    assert answer.end.timings.predicted_n == 0
    assert answer.end.timings.prompt_n == 50


def test_one_token_wanted(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=1)
    assert (answer.reason, len(answer.tokens)) == ("limit", 1)


def test_a_prompt_of_one_token(full: RunningEngine) -> None:
    before = full.counters()
    answer = full.ask([models.token_id("a")], max_tokens=3)
    after = full.counters()
    assert len(answer.tokens) == 3
    assert after.num_prefilled_tokens - before.num_prefilled_tokens == 1


# --- ends ----------------------------------------------------------------------------------


def test_every_stop_string_of_an_answer_ends_it_where_it_stands(full: RunningEngine) -> None:
    whole = full.ask(PROMPT, max_tokens=30)
    for start in range(0, len(whole.text) - 6, 3):
        stop = whole.text[start : start + 5]  # mostly split over several tokens
        at = whole.text.index(stop)
        answer = full.ask(PROMPT, max_tokens=30, stop=("never", stop))
        assert answer.text == whole.text[:at]
        assert (answer.reason, answer.end.stop_string) == ("stop_string", stop)
        num_needed = min(n for n in range(31) if stop in pieces(whole.tokens[:n]))
        assert answer.end.timings.predicted_n == num_needed


def pieces(tokens: list[int]) -> str:
    texts = models.vocabulary()
    return "".join(texts[token] for token in tokens).replace("Ġ", " ").replace("Ċ", "\n")


def test_held_text_comes_at_the_end_when_it_was_no_stop_string(full: RunningEngine) -> None:
    whole = full.ask(PROMPT, max_tokens=10)
    answer = full.ask(PROMPT, max_tokens=10, stop=(whole.text[-3:] + "never",))
    assert (answer.text, answer.reason) == (whole.text, "limit")
    assert answer.tokens == whole.tokens


def test_an_end_of_generation_token_ends_the_answer_without_text(full: RunningEngine) -> None:
    end = models.token_id(models.TURN_END)
    params = SamplingParams(temperature=0.0, logit_bias=((end, 100.0),))
    answer = full.ask(PROMPT, sampling=params)
    assert (answer.reason, answer.text, answer.tokens) == ("eos", "", [])
    assert answer.end.timings.predicted_n == 1


def test_ignore_eos_goes_on(full: RunningEngine) -> None:
    end = models.token_id(models.TURN_END)
    params = SamplingParams(temperature=0.0, logit_bias=((end, 100.0),), ignore_eos=True)
    answer = full.ask(PROMPT, sampling=params, max_tokens=5)
    assert (answer.reason, len(answer.tokens)) == ("limit", 5)


def test_a_full_context_ends_the_answer_and_not_the_server(small_context: RunningEngine) -> None:
    for _ in range(2):
        answer = small_context.ask(prompt_tokens(200))
        assert answer.reason == "context_full"
        assert len(answer.tokens) == 256 - 200 + 1  # the last one needs no cell
    assert small_context.ask(prompt_tokens(10, seed=2), max_tokens=3).reason == "limit"
    assert small_context.is_idle


def test_the_longest_prompt_that_fits(small_context: RunningEngine) -> None:
    answer = small_context.ask(prompt_tokens(255), cache_prompt=False)
    assert (answer.reason, len(answer.tokens)) == ("context_full", 2)


def test_choices_that_fill_the_context_all_end(small_context: RunningEngine) -> None:
    answer = small_context.ask(prompt_tokens(150), num_choices=3)
    assert [choice.reason for choice in answer.choices] == ["context_full"] * 3
    assert [len(choice.tokens) for choice in answer.choices] == [256 - 150 + 1] * 3
    assert small_context.is_idle


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "fields", "message"),
    [
        ([], {}, "no tokens"),
        ([5, 10_000], {}, "token 10000 is not in the vocabulary"),
        ([-1], {}, "token -1 is not in the vocabulary"),
        (PROMPT, {"num_choices": 5}, "n is 5, but this server decodes at most 4"),
        (PROMPT, {"sampling": SamplingParams(samplers=("magic",))}, "sampler 'magic' is unknown"),
        (PROMPT, {"sampling": SamplingParams(grammar="root ::= x")}, "grammar cannot be parsed"),
        (
            PROMPT,
            {"sampling": SamplingParams(logit_bias=tuple((i, -math.inf) for i in range(400)))},
            "every token is banned",
        ),
    ],
)
def test_impossible_requests(
    full: RunningEngine, tokens: list[int], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        full.ask(tokens, **fields)
    assert full.is_idle


def test_a_prompt_that_does_not_fit_says_both_numbers(small_context: RunningEngine) -> None:
    with pytest.raises(ContextExceeded, match="256 tokens.*256 tokens"):
        small_context.ask(prompt_tokens(256))


# --- logprobs ------------------------------------------------------------------------------


def test_logprobs_are_probabilities_and_sorted(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=10, num_logprobs=400, sampling=sampling())
    assert [one.token for one in logprobs(answer)] == answer.tokens
    for one in logprobs(answer):
        found = [logprob for _, _, logprob in one.top]
        assert found == sorted(found, reverse=True)
        assert sum(map(math.exp, found)) == pytest.approx(1, abs=1e-4)  # the whole vocabulary
        assert {token: logprob for token, _, logprob in one.top}[one.token] == one.logprob
    assert b"".join(one.token_bytes for one in logprobs(answer)).decode() == answer.text


def test_greedy_takes_the_first_rival(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=10, num_logprobs=3)
    for one in logprobs(answer):
        assert len(one.top) == 3
        assert one.top[0][0] == one.token
        assert sum(math.exp(logprob) for _, _, logprob in one.top) <= 1


def test_only_the_sampled_tokens_logprob(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=5, num_logprobs=0)
    assert len(logprobs(answer)) == 5
    assert all(one.top == () and one.logprob < 0 for one in logprobs(answer))


def test_logprobs_are_those_before_the_samplers(full: RunningEngine) -> None:
    free = full.ask(PROMPT, max_tokens=1, num_logprobs=5)
    banned = SamplingParams(temperature=0.0, logit_bias=((free.tokens[0], -math.inf),))
    answer = full.ask(PROMPT, max_tokens=1, num_logprobs=5, sampling=banned)
    assert answer.tokens != free.tokens
    assert logprobs(answer)[0].top[0][0] == free.tokens[0]


# --- samplers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"repeat_penalty": 1.3, "repeat_last_n": -1},
        {"repeat_penalty": 1.3, "repeat_last_n": 2**31 - 1},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ()},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"typical_p": 0.5},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0},
        {"samplers": (*DEFAULT_SAMPLERS, "adaptive_p"), "adaptive_target": 0.3},
        {"samplers": ()},
        {"samplers": ("temperature", "top_k"), "top_k": 1},
        {"min_keep": 5, "top_p": 0.0},
        {"temperature": 0.0, "typical_p": 0.1},
        {"temperature": -1.0},
        {"seed": 2**32 - 2},
    ],
)
def test_every_sampler_runs(full: RunningEngine, fields: dict[str, Any]) -> None:
    answers = [
        full.ask(PROMPT, max_tokens=12, sampling=sampling(**fields), cache_prompt=False)
        for _ in range(2)
    ]
    assert len(answers[0].tokens) == 12
    assert answers[0].tokens == answers[1].tokens


def test_a_bias_bans_and_forces(full: RunningEngine) -> None:
    free = full.ask(PROMPT, max_tokens=20)
    bias = tuple((token, -math.inf) for token in set(free.tokens))
    params = SamplingParams(temperature=0.0, ignore_eos=True, logit_bias=bias)
    assert not set(full.ask(PROMPT, max_tokens=20, sampling=params).tokens) & set(free.tokens)
    forced = SamplingParams(temperature=0.0, logit_bias=((models.token_id("q"), 100.0),))
    assert full.ask(PROMPT, max_tokens=4, sampling=forced).text == "qqqq"


def test_a_strong_presence_penalty_repeats_no_token(full: RunningEngine) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, presence_penalty=100.0)
    answer = full.ask(PROMPT, max_tokens=30, sampling=params)
    assert len(set(answer.tokens)) == 30
    assert not set(answer.tokens) & set(PROMPT)  # the prompt is looked back on, too


# --- grammars ------------------------------------------------------------------------------

JSON_LIKE = r"""
root   ::= "{" pair ("," pair)? "}"
pair   ::= "\"" [a-z]+ "\":" value
value  ::= [0-9]+ | "\"" [a-z]* "\"" | root
"""


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_grammar_rules_the_text(engines: Engines, kind: models.Kind) -> None:
    params = sampling(grammar=r'root ::= "{" "\"" [a-f] [a-f] "\":" [0-9] [0-9]? "}"', seed=2)
    answer = engines(kind).ask(PROMPT, sampling=params)
    assert answer.reason == "eos"  # the grammar has ended, though ignore_eos bans the token
    name, value = answer.text.strip("{}").split(":")
    assert set(name) <= {*'"abcdef'}
    assert value.isdecimal()


def test_a_recursive_grammar_under_every_seed(full: RunningEngine) -> None:
    texts = set()
    for seed in range(8):
        params = SamplingParams(grammar=JSON_LIKE, seed=seed, temperature=1.5)
        answer = full.ask(PROMPT, sampling=params, max_tokens=40)
        assert answer.text.startswith('{"')
        assert (answer.reason == "eos") == (answer.text.count("{") == answer.text.count("}"))
        texts.add(answer.text)
    assert len(texts) > 1


def test_a_grammar_that_always_agrees_changes_nothing(full: RunningEngine) -> None:
    free = full.ask(PROMPT, max_tokens=15, cache_prompt=False)
    params = SamplingParams(temperature=0.0, ignore_eos=True, grammar="root ::= [^\\x00]*")
    answer = full.ask(PROMPT, max_tokens=15, sampling=params, cache_prompt=False)
    assert answer.tokens == free.tokens


def test_a_grammar_whose_only_tokens_are_banned_ends_the_answer(full: RunningEngine) -> None:
    ban = ((models.token_id("x"), -math.inf),)
    for temperature in (0.0, 0.8):
        params = SamplingParams(grammar='root ::= "ax"', logit_bias=ban, temperature=temperature)
        answer = full.ask(PROMPT, sampling=params)
        assert (answer.text, answer.reason) == ("a", "eos")


def test_a_grammar_with_mirostat_and_penalties(full: RunningEngine) -> None:
    for fields in ({"mirostat": 2}, {"repeat_penalty": 1.5}, {"typical_p": 0.5, "top_k": 0}):
        params = SamplingParams(grammar='root ::= "no" | "yes"', seed=1, **fields)
        assert full.ask(PROMPT, sampling=params).text in ("no", "yes")


# --- progress ------------------------------------------------------------------------------


def test_progress_counts_up_to_the_whole_prompt(full: RunningEngine) -> None:
    prompt = prompt_tokens(3000, seed=6)
    answer = full.ask(prompt, max_tokens=1, wants_progress=True, cache_prompt=False)
    processed = [event.num_processed for event in answer.progress]
    assert processed[0] == 0
    assert processed == sorted(set(processed))
    assert processed[-1] == 3000
    assert {event.num_tokens for event in answer.progress} == {3000}
    assert full.ask(prompt, max_tokens=1, sampling=GREEDY).progress == []


def test_control_tokens_are_text_only_when_wanted(full: RunningEngine) -> None:
    start = models.token_id(models.TURN_START)
    params = SamplingParams(temperature=0.0, logit_bias=((start, 100.0),))
    hidden = full.ask(PROMPT, max_tokens=2, sampling=params)
    assert (hidden.text, hidden.tokens) == ("", [start, start])
    shown = full.ask(PROMPT, max_tokens=2, sampling=params, special=True)
    assert shown.text == 2 * models.TURN_START
    other = full.ask(PROMPT, max_tokens=2, sampling=params, shown_tokens=(start + 1,))
    assert other.text == ""
    single = full.ask(PROMPT, max_tokens=2, sampling=params, shown_tokens=(start,))
    assert single.text == 2 * models.TURN_START

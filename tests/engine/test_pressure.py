"""More is asked for than fits: requests wait or pause, all end, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import RunningEngine, check_same, prompt_tokens, spec
from tests.soak import in_soak

from milepost.protocol.counters import Counters
from milepost.protocol.messages import Delta, Finished
from milepost.protocol.sampling import SamplingParams

NUM_REQUESTS = in_soak(400, 100)


def test_requests_whose_cells_do_not_fit_together_all_finish(
    small_context: RunningEngine, fresh_engines: Engines
) -> None:
    requests: list[dict[str, Any]] = [
        {"tokens": prompt_tokens(90, seed=70 + i), "max_tokens": 60, "num_logprobs": 10}
        for i in range(4)
    ]
    answers = small_context.ask_all(*requests)
    for request, answer in zip(requests, answers, strict=True):
        assert (answer.reason, len(answer.tokens)) == ("limit", 60)
        check_same(answer, fresh_engines("full").ask(**request, cache_prompt=False))
    assert small_context.is_idle


def test_a_newcomer_does_not_stop_an_older_stream(small_context: RunningEngine) -> None:
    """The old one holds 150 cells of 256 and grows; the new one needs 130."""
    old, new = small_context.ask_all(
        {"tokens": prompt_tokens(140, seed=75), "max_tokens": 60},
        {"tokens": prompt_tokens(130, seed=76), "max_tokens": 5},
    )
    assert (len(old.tokens), len(new.tokens)) == (60, 5)
    assert old.end.timings.predicted_ms < new.end.timings.prompt_ms


def test_choices_pause_for_each_other(small_context: RunningEngine) -> None:
    answer = small_context.ask(prompt_tokens(100, seed=77), num_choices=4, max_tokens=60)
    assert [len(choice.tokens) for choice in answer.choices] == [60] * 4
    assert len({choice.text for choice in answer.choices}) == 1
    assert small_context.is_idle


def test_more_requests_than_slots_wait_their_turn(engines: Engines) -> None:
    requests = [{"tokens": prompt_tokens(10, seed=80 + i), "max_tokens": 3} for i in range(12)]
    answers = engines("full").ask_all(*requests)
    assert [len(answer.tokens) for answer in answers] == [3] * 12
    assert engines("full").is_idle


# --- everything at once --------------------------------------------------------------------


def random_sampling(randoms: random.Random) -> SamplingParams:
    fields: dict[str, Any] = {"seed": randoms.randrange(1000)}
    choices: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 5},
        {"repeat_penalty": 1.2, "dry_multiplier": 0.5},
        {"mirostat": 2},
        {"grammar": 'root ::= [a-z]+ ("." | "!")'},
        {"xtc_probability": 0.5, "typical_p": 0.8},
        {"ignore_eos": True},
    ]
    return SamplingParams(**fields, **randoms.choice(choices))


def random_request(randoms: random.Random) -> dict[str, Any]:
    base = prompt_tokens(150, seed=randoms.randrange(4))
    tokens = base[: randoms.randint(1, 150)] + prompt_tokens(
        randoms.randint(0, 60), seed=randoms.randrange(4, 50)
    )
    return {
        "tokens": tokens,
        "sampling": random_sampling(randoms),
        "max_tokens": randoms.randint(0, 16),
        "stop": randoms.choice([(), ("e", "the "), ("never",)]),
        "num_choices": randoms.choice([1, 1, 1, 2, 4]),
        "num_logprobs": randoms.choice([-1, -1, 0, 3]),
        "cache_prompt": randoms.random() < 0.8,
        "wants_progress": randoms.random() < 0.3,
    }


async def run_request(
    engine: RunningEngine, request: dict[str, Any], num_events: int
) -> list[Finished]:
    """Take a number of events of a request, or all when it is negative; return its ends."""
    ends, num_tokens = [], dict.fromkeys(range(request["num_choices"]), 0)
    async with engine.client.generate(*spec(**request)) as generation:
        async for event in generation:
            if num_events == 0:
                break
            num_events -= 1
            if isinstance(event, Delta):
                num_tokens[event.choice] += len(event.tokens)
            if isinstance(event, Finished):
                ends.append(event)
                assert num_tokens[event.choice] <= max(request["max_tokens"], 0)
    return ends


def check_counters(before: Counters, after: Counters, requests: list[dict[str, Any]]) -> None:
    num_prompt = sum(len(request["tokens"]) for request in requests)
    assert after.num_requests - before.num_requests == len(requests)
    assert after.num_prompt_tokens - before.num_prompt_tokens == num_prompt
    num_cached = after.num_cached_tokens - before.num_cached_tokens
    num_prefilled = after.num_prefilled_tokens - before.num_prefilled_tokens
    assert 0 <= num_cached < num_prompt
    assert 0 < num_prefilled <= num_prompt - num_cached
    assert after.num_decode_calls > before.num_decode_calls
    assert after.prefill_s > before.prefill_s


@pytest.mark.soak
@pytest.mark.parametrize("kind", models.KINDS)
def test_random_requests_leave_no_slot_busy(engines: Engines, kind: models.Kind) -> None:
    engine, randoms = engines(kind), random.Random(90)
    num_requests = NUM_REQUESTS if kind == "full" else NUM_REQUESTS // 4
    requests = [random_request(randoms) for _ in range(num_requests)]
    num_events = [randoms.choice([-1, -1, 0, 1, 3, 8]) for _ in requests]
    before = engine.counters()

    async def test() -> list[list[Finished]]:
        gate = asyncio.Semaphore(10)

        async def one(request: dict[str, Any], count: int) -> list[Finished]:
            async with gate:
                return await run_request(engine, request, count)

        return await asyncio.gather(*map(one, requests, num_events))

    all_ends = engine.run(test())
    for request, count, ends in zip(requests, num_events, all_ends, strict=True):
        if count < 0:
            assert sorted(end.choice for end in ends) == list(range(request["num_choices"]))
            assert all(end.num_prompt_tokens == len(request["tokens"]) for end in ends)
    assert engine.is_idle
    check_counters(before, engine.counters(), requests)


def test_without_cancels_every_prompt_token_is_cached_or_computed(engines: Engines) -> None:
    engine, randoms = engines("full"), random.Random(91)
    requests = [random_request(randoms) for _ in range(30)]
    before = engine.counters()
    answers = engine.ask_all(*requests)
    after = engine.counters()
    num_prompt = sum(len(request["tokens"]) for request in requests)
    num_cached = after.num_cached_tokens - before.num_cached_tokens
    assert num_cached == sum(answer.end.timings.cache_n for answer in answers)
    assert after.num_prefilled_tokens - before.num_prefilled_tokens == num_prompt - num_cached
    assert after.num_decoded_tokens - before.num_decoded_tokens == sum(
        choice.finished.timings.predicted_n
        for answer in answers
        for choice in answer.choices
        if choice.finished is not None
    )

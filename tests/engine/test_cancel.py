"""A request that nobody wants any more stops at once, and leaves nothing wrong behind."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import RunningEngine, check_same, collect, prompt_tokens, spec

from milepost.protocol.messages import Delta, Finished, PromptProgress
from milepost.workers.client import EngineClient

NUM_PROMPT = 4600  # two batches and a rest: some seconds on one thread of a tiny model


async def leave_in_prefill(client: EngineClient, tokens: list[int]) -> float:
    """Cancel a request within its prefill; return the seconds until the engine answers."""
    async with client.generate(*spec(tokens, wants_progress=True)) as generation:
        async for event in generation:
            if isinstance(event, PromptProgress) and event.num_processed > event.num_cached:
                break
    started = time.perf_counter()
    await client.get_status()
    return time.perf_counter() - started


async def leave_at_once(client: EngineClient, tokens: list[int]) -> None:
    """Cancel a request while its first batch is computed."""
    async with client.generate(*spec(tokens, wants_progress=True)) as generation:
        async for event in generation:
            if isinstance(event, PromptProgress):
                break


async def leave_in_decode(client: EngineClient, tokens: list[int], num_deltas: int) -> None:
    async with client.generate(*spec(tokens)) as generation:
        async for event in generation:
            num_deltas -= isinstance(event, Delta)
            if num_deltas == 0:
                break


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_prefill_is_aborted_and_the_next_request_is_right(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    engine, prompt = engines(kind), prompt_tokens(NUM_PROMPT, seed=40)
    before = engine.counters()
    cancelled_s = engine.run(leave_in_prefill(engine.client, prompt))
    assert engine.is_idle
    num_done = engine.counters().num_prefilled_tokens - before.num_prefilled_tokens
    assert 0 < num_done < NUM_PROMPT

    fields = {"max_tokens": 4, "num_logprobs": 10}
    answer = engine.ask(prompt, **fields)
    assert answer.end.timings.prompt_ms > 1000 * cancelled_s
    check_same(answer, fresh_engines(kind).ask(prompt, cache_prompt=False, **fields))
    num_cached = answer.end.timings.cache_n
    assert num_cached % 512 == 0
    assert num_cached > 0


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_last_micro_batch_is_not_lost_by_a_cancel(engines: Engines, kind: models.Kind) -> None:
    engine, prompt = engines(kind), prompt_tokens(400, seed=46)
    before = engine.counters()
    engine.run(leave_at_once(engine.client, prompt))
    assert engine.is_idle
    engine.ask(prompt, max_tokens=2)
    num_prefilled = engine.counters().num_prefilled_tokens - before.num_prefilled_tokens
    assert num_prefilled == len(prompt)


@pytest.mark.parametrize("kind", models.KINDS)
def test_an_aborted_prefill_leaves_the_other_slots_alone(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    engine, other = engines(kind), prompt_tokens(100, seed=41)
    other += engine.ask(other, max_tokens=4).tokens
    engine.run(leave_in_prefill(engine.client, prompt_tokens(NUM_PROMPT, seed=42)))
    longer = other + prompt_tokens(5, seed=43)
    fields = {"max_tokens": 4, "num_logprobs": 10}
    answer = engine.ask(longer, **fields)
    assert answer.end.timings.cache_n == len(other) - 1
    check_same(answer, fresh_engines(kind).ask(longer, cache_prompt=False, **fields))


@pytest.mark.parametrize("kind", models.KINDS)
def test_what_was_decoded_before_a_cancel_is_kept(
    engines: Engines, fresh_engines: Engines, kind: models.Kind
) -> None:
    engine, prompt = engines(kind), prompt_tokens(60, seed=44)
    engine.run(leave_in_decode(engine.client, prompt, 3))
    assert engine.is_idle
    held = max(slot.num_tokens for slot in engine.status().slots if slot.num_tokens < 200)
    assert held >= 62
    fields = {"max_tokens": 4, "num_logprobs": 10}
    answer = engine.ask(prompt, **fields)
    check_same(answer, fresh_engines(kind).ask(prompt, cache_prompt=False, **fields))


def test_a_waiting_request_is_forgotten(engines: Engines) -> None:
    client = engines("full").client

    async def test() -> None:
        running = [
            asyncio.create_task(leave_in_decode(client, prompt_tokens(20, seed), 200))
            for seed in range(50, 54)
        ]
        await asyncio.sleep(0)
        async with client.generate(*spec(prompt_tokens(20, seed=54))):
            while (await client.get_status()).num_waiting == 0:
                pass
            assert not any(task.done() for task in running)
        assert (await client.get_status()).num_waiting == 0
        await asyncio.gather(*running)

    engines("full").run(test())
    assert engines("full").is_idle


def test_choices_are_cancelled_together(engines: Engines) -> None:
    engine = engines("full")

    async def test() -> None:
        async with engine.client.generate(
            *spec(prompt_tokens(20, seed=55), num_choices=3)
        ) as generation:
            seen = set[int]()
            async for event in generation:
                if isinstance(event, Delta):
                    seen.add(event.choice)
                if len(seen) == 3:
                    break

    engine.run(test())
    assert engine.is_idle


def test_a_cancel_that_comes_too_late_changes_nothing(engines: Engines) -> None:
    engine = engines("full")

    async def test() -> None:
        async with engine.client.generate(*spec(prompt_tokens(20, seed=56), max_tokens=2)):
            await engine.client.get_status()
            await asyncio.sleep(0.05)  # the answer is complete, but not read

    engine.run(test())
    assert engine.ask(prompt_tokens(20, seed=57), max_tokens=2).reason == "limit"
    assert engine.is_idle


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_long_prefill_does_not_stop_a_stream(engines: Engines, kind: models.Kind) -> None:
    engine = engines(kind)
    order = engine.run(interleaved(engine))
    begin, end = order.index("begin"), order.index("end")
    chunks = [i for i in range(begin, end) if order[i] == "chunk"]
    assert len(chunks) > 4
    # Events of two requests that arrive together may be read in any order, so they are counted.
    assert order[begin:end].count("token") >= len(chunks) - 1
    assert engine.is_idle


async def interleaved(engine: RunningEngine) -> list[str]:
    """Return the order of a stream's tokens and of the chunks of a prompt that comes later."""
    order: list[str] = []
    long_prompt = spec(prompt_tokens(NUM_PROMPT, seed=59), max_tokens=1, wants_progress=True)

    async def prefill() -> None:
        async with engine.client.generate(*long_prompt) as generation:
            order.append("begin")
            async for event in generation:
                if isinstance(event, PromptProgress):
                    order.append("chunk")
                if isinstance(event, Finished):
                    order.append("end")

    async with engine.client.generate(*spec(prompt_tokens(30, seed=58))) as stream:
        await anext(stream)
        task = asyncio.create_task(prefill())
        async for event in stream:
            if isinstance(event, Delta):
                order.append("token")
            if "end" in order:
                break
        await task
    return order


def test_short_requests_are_answered_during_a_long_prefill(engines: Engines) -> None:
    engine = engines("recurrent")
    order: list[int] = []

    async def ask(number: int, num_tokens: int) -> None:
        await collect(engine.client, prompt_tokens(num_tokens, seed=60 + number), max_tokens=2)
        order.append(number)

    async def test() -> None:
        await asyncio.gather(ask(1, 6000), ask(2, 30), ask(3, 30))

    engine.run(test())
    assert order[-1] == 1

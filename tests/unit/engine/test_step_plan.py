"""ModelRunner keep to their limits, never leave out a stream, and let the oldest prompt go on."""

from __future__ import annotations

import random

import pytest

from milepost.engine.step_plan import (
    MAX_STALL_S,
    MIN_CHUNK_TOKENS,
    BatchLimits,
    MediaChunking,
    PendingTokens,
    ScheduledTokens,
    choose_chunk_tokens,
    plan_batch,
    plan_step,
    split_budget,
)

LIMITS = BatchLimits(num_batch_tokens=2048, num_ubatch_tokens=512)


def prefill(slot_id: int, num_missing: int) -> PendingTokens:
    return PendingTokens(slot_id, num_missing, is_decoding=False)


def decode(slot_id: int) -> PendingTokens:
    return PendingTokens(slot_id, 1, is_decoding=True)


def grants(scheduled: list[ScheduledTokens]) -> dict[int, int]:
    return {entry.slot_id: entry.num_tokens for entry in scheduled}


def random_pending(randoms: random.Random) -> list[PendingTokens]:
    return [
        decode(slot_id) if randoms.random() < 0.4 else prefill(slot_id, randoms.randint(0, 3000))
        for slot_id in randoms.sample(range(64), randoms.randint(0, 12))
    ]


def test_random_plans_hold_the_rules() -> None:
    randoms = random.Random(11)
    for _ in range(3000):
        pending = random_pending(randoms)
        most = randoms.randint(max(len(pending), 1), 2048)
        limits = BatchLimits(most, randoms.randint(1, most))
        scheduled = plan_batch(pending, limits, randoms.choice([0.0, 10.0, 500.0, 1e6]))
        granted = grants(scheduled)
        missing = {entry.slot_id: entry.num_missing for entry in pending}
        decoding = [entry.slot_id for entry in pending if entry.is_decoding]
        prefilling = [w.slot_id for w in pending if not w.is_decoding and w.num_missing]

        assert len(granted) == len(scheduled)
        assert sum(granted.values()) <= limits.num_batch_tokens
        assert all(0 < count <= missing[slot_id] for slot_id, count in granted.items())
        assert [entry.slot_id for entry in scheduled if entry.is_decoding] == decoding
        assert not prefilling or granted[prefilling[0]] > 0


def test_everybody_progresses_until_all_is_computed() -> None:
    randoms = random.Random(12)
    for _ in range(100):
        missing = {slot_id: randoms.randint(1, 900) for slot_id in range(6)}
        for _ in range(200):
            pending = [prefill(slot_id, count) for slot_id, count in missing.items() if count]
            for slot_id, count in grants(plan_batch(pending, LIMITS, 300.0)).items():
                missing[slot_id] -= count
        assert not any(missing.values())


def image(slot_id: int, num_missing: int, kind: MediaChunking = "parts") -> PendingTokens:
    return PendingTokens(slot_id, num_missing, is_decoding=False, media=kind)


def test_media_and_prefills_of_text_take_turns() -> None:
    pending = [prefill(0, 3000), decode(1), image(2, 4000)]
    first = plan_step(pending, LIMITS, 400.0, was_media=False)
    second = plan_step(pending, LIMITS, 400.0, was_media=True)
    assert first.scheduled == [ScheduledTokens(1, 1, is_decoding=True)]
    assert first.media == ScheduledTokens(2, int(400 * MAX_STALL_S), is_decoding=False)
    assert grants(second.scheduled).keys() == {0, 1}
    assert second.media is None


def test_a_media_without_rivals_is_computed_step_by_step() -> None:
    plan = plan_step([image(0, 4000)], LIMITS, 0.0, was_media=True)
    assert (plan.scheduled, plan.media) == ([], ScheduledTokens(0, 512, is_decoding=False))


def test_a_media_that_must_be_whole_is_whole_beside_streams() -> None:
    plan = plan_step([decode(1), image(0, 500, "whole")], LIMITS, 100.0, was_media=False)
    assert plan.media == ScheduledTokens(0, 500, is_decoding=False)


def test_without_media_a_step_is_a_batch() -> None:
    pending = [prefill(0, 3000), decode(1)]
    plan = plan_step(pending, LIMITS, 400.0, was_media=False)
    assert (plan.scheduled, plan.media) == (plan_batch(pending, LIMITS, 400.0), None)


def test_nothing_to_do_is_an_empty_batch() -> None:
    assert plan_batch([], LIMITS, 100.0) == []
    assert plan_batch([prefill(0, 0)], LIMITS, 100.0) == []


def test_streams_come_first_and_bound_the_chunk_beside_them() -> None:
    scheduled = plan_batch([prefill(0, 4000), decode(1), decode(2)], LIMITS, 400.0)
    assert scheduled == [
        ScheduledTokens(1, 1, is_decoding=True),
        ScheduledTokens(2, 1, is_decoding=True),
        ScheduledTokens(0, int(400 * MAX_STALL_S) - 2, is_decoding=False),
    ]


@pytest.mark.parametrize(
    ("rate", "others_decode", "expected"),
    [
        (0.0, False, 512),  # unknown: one micro-batch to learn it
        (0.0, True, 512),
        (100.0, False, 512),  # never less than a micro-batch alone
        (400.0, False, 1536),
        (1e6, False, 2048),
        (10.0, True, MIN_CHUNK_TOKENS),
        (400.0, True, 200),
        (1e6, True, 512),
    ],
)
def test_chunk_sizes(rate: float, others_decode: bool, expected: int) -> None:
    assert choose_chunk_tokens(LIMITS, rate, others_decode=others_decode) == expected


def test_chunks_of_a_lone_prefill_are_whole_micro_batches() -> None:
    randoms = random.Random(13)
    for _ in range(500):
        micro = randoms.randint(1, 600)
        limits = BatchLimits(randoms.randint(micro, 3000), micro)
        chunk = choose_chunk_tokens(limits, randoms.uniform(0, 5000), others_decode=False)
        assert chunk % micro == 0
        assert micro <= chunk <= limits.num_batch_tokens


def test_a_short_prompt_gets_all_it_needs_and_the_oldest_the_rest() -> None:
    scheduled = split_budget([prefill(5, 5000), prefill(3, 20), prefill(4, 5000)], 512)
    assert grants(scheduled) == {5: 170 + 152, 3: 20, 4: 170}


def test_a_budget_too_small_for_all_goes_to_the_oldest() -> None:
    scheduled = split_budget([prefill(9, 10), prefill(1, 10), prefill(2, 10)], 2)
    assert grants(scheduled) == {9: 1, 1: 1}

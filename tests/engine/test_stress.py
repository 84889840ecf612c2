"""Conversations that do not fit into the context together, asked, cancelled and branched at once.

Every answer is compared with one of an engine that reuses nothing. This is where slots that claim
what they do not hold, and cells that nobody owns, come to light.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import models
from tests.engine.running import Answer, RunningEngine, check_same, collect, running_engine, spec
from tests.soak import in_soak

from milepost.workers.client import EngineClient

NUM_ROUNDS = in_soak(40, 6)
CONTEXT = {"ctx_size": 512, "batch_size": 256, "ubatch_size": 64}
LETTERS = range(models.token_id("a"), models.token_id("z") + 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a round."""

    tokens: list[int]
    num_choices: int
    num_events: int  # after so many the client leaves; -1: it stays


class Conversations:
    """Four conversations that grow, are edited, and are asked side questions."""

    def __init__(self, randoms: random.Random) -> None:
        self._randoms = randoms
        first = models.token_id("!")
        self._held = [[first + i, *self._letters(120)] for i in range(4)]

    def next_round(self) -> list[Asked]:
        randoms = self._randoms
        return [
            Asked(
                self._next_prompt(),
                randoms.choice([1, 1, 1, 2, 3]),
                randoms.choice([-1, -1, -1, 0, 1, 4]),
            )
            for _ in range(randoms.randint(1, 6))
        ]

    def _next_prompt(self) -> list[int]:
        number = self._randoms.randrange(len(self._held))
        held, new = self._held[number], self._letters(60)
        part = held[: self._randoms.randint(1, len(held))]
        match self._randoms.choice(["append", "append", "edit", "side", "again"]):
            case "append" if len(held) < 350:
                self._held[number] = held + new
            case "side":
                return part + new
            case "again":
                return held
            case _:
                self._held[number] = part + new
        return self._held[number]

    def _letters(self, at_most: int) -> list[int]:
        return self._randoms.choices(LETTERS, k=self._randoms.randint(1, at_most))


@pytest.fixture(params=models.KINDS)
def pair(
    request: pytest.FixtureRequest, tiny_models: dict[models.Kind, Path]
) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    """A crowded engine, and one to compare with."""
    path = tiny_models[request.param]
    with (
        running_engine(path, parallel=3, **CONTEXT) as crowded,
        running_engine(path, parallel=1, **CONTEXT) as fresh,
    ):
        yield crowded, fresh


@pytest.mark.soak
def test_crowded_conversations(pair: tuple[RunningEngine, RunningEngine]) -> None:
    crowded, fresh = pair
    conversations = Conversations(random.Random(3))
    for _ in range(NUM_ROUNDS):
        asked = conversations.next_round()
        for one, answer in zip(asked, crowded.run(ask_round(crowded, asked)), strict=True):
            if answer is not None:
                check_choices(answer, one, fresh)
        assert crowded.is_idle


async def ask_round(engine: RunningEngine, asked: list[Asked]) -> list[Answer | None]:
    return await asyncio.gather(*(ask(engine.client, one) for one in asked))


async def ask(client: EngineClient, asked: Asked) -> Answer | None:
    if asked.num_events < 0:
        return await collect(
            client, asked.tokens, max_tokens=6, num_logprobs=10, num_choices=asked.num_choices
        )
    num_left = asked.num_events
    async with client.generate(*spec(asked.tokens, max_tokens=12, wants_progress=True)) as stream:
        async for _ in stream:
            num_left -= 1
            if num_left < 0:
                break
    return None


def check_choices(answer: Answer, asked: Asked, fresh: RunningEngine) -> None:
    expected = fresh.ask(asked.tokens, max_tokens=6, num_logprobs=10, cache_prompt=False)
    for choice in answer.choices:
        assert choice.reason == expected.reason == "limit"
        assert len(choice.tokens) == len(expected.tokens) == 6
        check_same(Answer([choice]), expected)

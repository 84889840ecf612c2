"""How many micro-batches a long prefill takes: hardly more than if no state were kept.

Counted where the library is called. The ideal is that of a prefill without any cut; what may come
on top is two micro-batches, or 2 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests import models
from tests.engine.walking import LETTERS, Conversation, Message, encode
from tests.engine.watching import WatchedEngine, watched_engine

from milepost.config import EngineSettings
from milepost.libllama import Model, ModelParams, open_library

NUM_MESSAGES = 120
NUM_UBATCH = 16  # small, so that a short conversation needs many
SETTINGS = EngineSettings(
    ctx_size=8192, parallel=1, batch_size=256, ubatch_size=NUM_UBATCH, threads=1
)
SHAPE = models.Shape(embd=32, layers=2, ff=32, heads=1, kv_heads=1)  # counting needs no answers
BUDGET_BYTES = 256 << 20
MIN_EXTRA, EXTRA_SHARE = 2, 0.02
WITH_STATES: tuple[models.Kind, ...] = ("window", "recurrent", "hybrid")  # others are never cut


@pytest.fixture(scope="module", params=WITH_STATES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    models.write_model(request.param, path, shape=SHAPE)
    with Model(open_library(), path, ModelParams()) as model:
        yield model


def make_conversation(num_messages: int) -> Conversation:
    """Return turns of a user, each with several tool results, that end before a reply."""
    randoms = random.Random(7)
    roles = ["user", *("assistant", "tool") * 3, "assistant"]
    return [
        Message(role, tuple(randoms.choices(LETTERS, k=randoms.randint(5, 25))))
        for role in ["system", *(roles[i % len(roles)] for i in range(num_messages - 1))]
    ]


def ask(engine: WatchedEngine, conversation: Conversation, **fields: Any) -> tuple[int, int]:
    """Send a conversation and check its prefill; return its tokens and how many were reused."""
    prompt = encode(conversation, keeps_prompt_end=True)
    number = engine.send(**prompt.fields, max_tokens=1, **fields)
    engine.wait(number)
    num_cached = engine.replies[number].num_cached
    check_ubatches(engine.context.computed[number].num_ubatches, len(prompt.tokens) - num_cached)
    return len(prompt.tokens), num_cached


def check_ubatches(num_ubatches: int, num_tokens: int) -> None:
    ideal = math.ceil(num_tokens / NUM_UBATCH)
    assert ideal <= num_ubatches <= ideal + max(MIN_EXTRA, int(EXTRA_SHARE * ideal))


def test_a_cold_prefill(model: Model) -> None:
    with watched_engine(model, SETTINGS, BUDGET_BYTES) as engine:
        num_tokens, num_cached = ask(engine, make_conversation(NUM_MESSAGES))
    assert num_tokens > 120 * NUM_UBATCH
    assert num_cached == 0


def test_every_turn_and_a_resume_after_others_came_between(model: Model) -> None:
    conversation = make_conversation(NUM_MESSAGES)
    with watched_engine(model, SETTINGS, BUDGET_BYTES) as engine:
        for num_messages in range(2, NUM_MESSAGES - 8, 9):
            ask(engine, conversation[:num_messages])
        for number in range(2):
            ask(engine, [conversation[0], conversation[-1 - number]])
        num_tokens, num_cached = ask(engine, conversation)
    assert num_cached > 0.8 * num_tokens


def test_a_history_with_many_known_divergences(model: Model) -> None:
    conversation = make_conversation(NUM_MESSAGES)
    aside = Message("user", tuple(LETTERS))
    with watched_engine(model, SETTINGS, BUDGET_BYTES) as engine:
        ask(engine, conversation)
        for num_messages in range(3, NUM_MESSAGES, 5):
            ask(engine, [*conversation[:num_messages], aside])
        prompt = engine.replies[1].prompt
        assert len(engine.runtime.cache.peek(prompt).divergences) > 20
        _, num_cached = ask(engine, conversation, cache_prompt=False)
    assert num_cached == 0

"""What is read from disk counts as held in memory, and not as quickly had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import models
from tests.engine.running import prompt_tokens
from tests.engine.watching import Reply, WatchedEngine, watched_engine

from milepost.config import EngineSettings
from milepost.engine.statistics import MIN_RATE_BYTES
from milepost.libllama import Model, ModelParams, open_library

PROMPT = prompt_tokens(3000, seed=300)
LONGER = PROMPT + prompt_tokens(30, seed=301)
AMPLE_BYTES = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_models: dict[models.Kind, Path]) -> Iterator[Model]:
    with Model(open_library(), tiny_models["hybrid"], ModelParams()) as model:
        yield model


@pytest.fixture
def settings(tiny_models: dict[models.Kind, Path], tmp_path: Path) -> EngineSettings:
    return EngineSettings(
        model_path=str(tiny_models["hybrid"]),
        ctx_size=4096,
        parallel=1,
        threads=1,
        cache_type_k="f32",
        cache_type_v="f32",
        flash_attn="off",
        cache_dir=str(tmp_path),
        cache_disk=1.0,
    )


@pytest.fixture
def stored_bytes(model: Model, settings: EngineSettings) -> int:
    """What an earlier run left on disk."""
    with watched_engine(model, settings, AMPLE_BYTES) as engine:
        engine.ask(PROMPT, max_tokens=2)
        return engine.runtime.cache.num_bytes


def source(reply: Reply) -> str:
    assert reply.finished is not None
    assert reply.finished.cache is not None
    return reply.finished.cache.source


def restore_rate(engine: WatchedEngine) -> float:
    return engine.loop.parts.statistics.restore_bytes_per_s


def test_a_restore_from_disk_does_not_count_for_the_rate_of_memory(
    model: Model, settings: EngineSettings, stored_bytes: int
) -> None:
    assert stored_bytes > 2 * MIN_RATE_BYTES
    with watched_engine(model, settings, AMPLE_BYTES) as engine:
        assumed = restore_rate(engine)
        assert source(engine.ask(LONGER, max_tokens=1)) == "disk"
        assert restore_rate(engine) == assumed
        engine.ask(prompt_tokens(40, seed=302), max_tokens=1)
        for slot in engine.loop.parts.slots.all:
            engine.loop.parts.slots.clear_slot(slot)
        assert source(engine.ask(LONGER + PROMPT[:9], max_tokens=1)) == "ram"
        assert restore_rate(engine) != assumed


def test_a_choice_that_goes_on_from_disk_leaves_memory_within_its_budget(
    model: Model, settings: EngineSettings, stored_bytes: int
) -> None:
    with watched_engine(model, settings, stored_bytes // 8) as engine:
        restorer, slots = engine.loop.parts.restorer, engine.loop.parts.slots
        slot = restorer.start_empty()
        restorer.refill(slot, np.array(LONGER, np.int32))
        assert slot.num_tokens >= len(PROMPT)
        engine.runtime.cache.check_invariants()
        slots.release(slot)

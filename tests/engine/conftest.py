"""Engine processes that many tests share, one of every memory kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import models
from tests.engine.running import RunningEngine, running_engine

Engines = Callable[[models.Kind], RunningEngine]


@pytest.fixture(scope="session")
def engines(tiny_models: dict[models.Kind, Path]) -> Iterator[Engines]:
    """Return the engine of a kind, with four slots, started on first use."""
    yield from _start_on_use(tiny_models, parallel=4)


@pytest.fixture(scope="session")
def fresh_engines(tiny_models: dict[models.Kind, Path]) -> Iterator[Engines]:
    """Return an engine of a kind to compare with: one slot, to be asked without its cache."""
    yield from _start_on_use(tiny_models, parallel=1)


@pytest.fixture
def full(engines: Engines) -> RunningEngine:
    return engines("full")


@pytest.fixture(scope="session")
def small_context(tiny_models: dict[models.Kind, Path]) -> Iterator[RunningEngine]:
    """An engine of the full kind whose four slots share 256 cells."""
    with running_engine(tiny_models["full"], ctx_size=256) as engine:
        yield engine


def _start_on_use(paths: dict[models.Kind, Path], parallel: int) -> Iterator[Engines]:
    running: dict[models.Kind, RunningEngine] = {}
    with contextlib.ExitStack() as stack:

        def start(kind: models.Kind) -> RunningEngine:
            if kind not in running:
                engine = running_engine(paths[kind], parallel=parallel)
                running[kind] = stack.enter_context(engine)
            return running[kind]

        yield start

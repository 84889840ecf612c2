"""Servers with settings of their own, started once, for the tests of this folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import models
from tests.conftest import ONE_THREAD
from tests.processes import RunningServer, running_server

API_KEY = "tiny-secret"
SMALL_CONTEXT_TOKENS = 256
IDLE_TIMEOUT_S = 20.0


@pytest.fixture(scope="session")
def guarded_server(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with a key, a small context, small bodies, metrics, an alias, and no slots."""
    flags = [
        *("--api-key", API_KEY, "-c", str(SMALL_CONTEXT_TOKENS), "--max-body-mib", "1"),
        *("--metrics", "--no-slots", "--alias", "first,second", "-np", "1"),
        *ONE_THREAD,
    ]
    log_path = tmp_path_factory.mktemp("servers") / "guarded.log"
    with running_server(tiny_models["full"], flags, log_path) as server:
        yield server


@pytest.fixture(scope="session")
def slow_server(
    slow_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server that needs seconds for a prompt of thousands of tokens."""
    log_path = tmp_path_factory.mktemp("servers") / "slow.log"
    with running_server(slow_model, ["-np", "2", "-b", "512", *ONE_THREAD], log_path) as server:
        yield server


def wait_until_idle(server: RunningServer) -> float:
    """Wait until no slot works on a request, and return how long that took in seconds."""
    started = time.monotonic()
    while any(slot["is_processing"] for slot in server.http.get("/slots").json()):
        assert time.monotonic() - started < IDLE_TIMEOUT_S, "a slot is still at work"
        time.sleep(0.02)
    return time.monotonic() - started

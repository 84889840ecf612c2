"""Both servers under test, started with the same settings, one at a time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import RunningServer, running_server

from milepost.bench.servers import ServedModel, make_upstream

TIMEOUT_S = 600.0  # of an answer; arbitrary


@dataclass(frozen=True, slots=True)
class ServedCase:
    """What both servers are told; names are the flags' of both."""

    model: Path
    ctx_size: int
    parallel: int
    threads: int
    batch_size: int = 2048
    ubatch_size: int = 512

    def milepost_flags(self) -> list[str]:
        """Return the settings as flags of `milepost serve`."""
        return [
            *("--ctx-size", str(self.ctx_size)),
            *("--parallel", str(self.parallel)),
            *("--threads", str(self.threads)),
            *("--batch-size", str(self.batch_size)),
            *("--ubatch-size", str(self.ubatch_size)),
            "--no-cache-disk",
        ]


def describe_case(case: ServedCase) -> dict[str, Any]:
    """Return the settings of a case for the results; the model is named elsewhere."""
    return {
        "ctx_size": case.ctx_size,
        "parallel": case.parallel,
        "threads": case.threads,
        "batch_size": case.batch_size,
        "ubatch_size": case.ubatch_size,
    }


@contextlib.contextmanager
def milepost_process(case: ServedCase, *flags: str) -> Iterator[RunningServer]:
    """Run `milepost serve` in a process of its own until the block is left.

    `flags` are those that only this server has.
    """
    all_flags = [*case.milepost_flags(), *flags]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(case.model, all_flags, Path(folder) / "server.log") as server,
    ):
        yield server


def ask(server: RunningServer, body: dict[str, Any]) -> dict[str, float]:
    """Send a chat request and return the timings that the engine reports."""
    response = server.http.post("/v1/chat/completions", json=body, timeout=TIMEOUT_S)
    response.raise_for_status()
    timings: dict[str, float] = response.json()["timings"]
    return timings


def read_cache(server: RunningServer) -> dict[str, Any]:
    """Return what `GET /cache` says."""
    response = server.http.get("/cache", timeout=TIMEOUT_S)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


@contextlib.contextmanager
def serve_milepost(case: ServedCase) -> Iterator[str]:
    """Yield the URL of a milepost server."""
    with milepost_process(case) as server:
        yield server.url


@contextlib.contextmanager
def serve_upstream(case: ServedCase) -> Iterator[str]:
    """Yield the URL of upstream's server."""
    served = ServedModel(
        model=str(case.model),
        ctx_size=case.ctx_size,
        parallel=case.parallel,
        threads=case.threads,
        batch_size=case.batch_size,
        ubatch_size=case.ubatch_size,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        make_upstream(served, Path(folder)) as process,
    ):
        yield process.url


SERVERS: dict[str, Callable[[ServedCase], AbstractContextManager[str]]] = {
    "milepost": serve_milepost,
    "upstream": serve_upstream,
}

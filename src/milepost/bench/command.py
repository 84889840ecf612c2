"""Carries out `milepost bench replay`: progress while it runs, tables at its end or its Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

from milepost.bench.progress_line import ProgressLine
from milepost.bench.replay import Replay, ReplayOptions
from milepost.bench.tables import make_console, print_measures
from milepost.client.server_client import ServerClient
from milepost.errors import BenchmarkFailed
from milepost.traces.trace import Trace, read_trace

EXIT_SOME_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand:
    """What the user asked for."""

    trace: Path
    url: str
    api_key: str = ""
    model: str = ""
    options: ReplayOptions = field(default_factory=ReplayOptions)
    json_path: Path | None = None
    with_requests: bool = False


def run_replay(command: ReplayCommand) -> int:
    """Replay and print; return the exit status. What is known is printed whatever happens.

    Raises BenchmarkFailed, and KeyboardInterrupt.
    """
    trace = read_trace(command.trace)
    if command.json_path is not None and not command.json_path.parent.is_dir():
        raise BenchmarkFailed(f"there is no folder {command.json_path.parent} for the JSON")
    started: list[Replay] = []
    try:
        asyncio.run(_connect_and_replay(command, trace, started))
    finally:
        for replay in started:
            _show(command, replay)
    return EXIT_SOME_FAILED if started[0].measure.totals.num_failed else 0


async def _connect_and_replay(command: ReplayCommand, trace: Trace, started: list[Replay]) -> None:
    line = ProgressLine(trace.name, sys.stderr)
    async with ServerClient(command.url, api_key=command.api_key, model=command.model) as server:
        await server.connect()
        started.append(Replay(trace, server, command.options, line.show))
        try:
            await started[0].run()
        finally:
            line.clear()


def _show(command: ReplayCommand, replay: Replay) -> None:
    measure = replay.measure
    if not measure.requests:
        return
    print_measures(make_console(), [measure], with_requests=command.with_requests)
    if command.json_path is not None:
        try:
            command.json_path.write_bytes(measure.to_json())
        except OSError as error:
            raise BenchmarkFailed(
                f"{command.json_path} cannot be written: {error.strerror}"
            ) from None

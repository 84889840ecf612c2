"""Carries out `milepost bench compare`: the same traces on several servers, one after the other.

Every replay gets a fresh server: what one trace left behind must not help the next. Servers never
run side by side, since two that compute at once on the same cores slow each other down beyond
measure.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from milepost.bench.comparison import Comparison, describe_difference, join_measures
from milepost.bench.machine import describe_machine, find_commit, list_versions
from milepost.bench.measures import TraceMeasure
from milepost.bench.plots import check_plots_possible, write_plots
from milepost.bench.progress_line import ProgressLine
from milepost.bench.replay import Replay, ReplayOptions
from milepost.bench.servers import SERVERS, ServedModel, ServerProcess
from milepost.bench.tables import describe_measure, make_console, make_totals_table
from milepost.client.server_client import ServerClient
from milepost.errors import BenchmarkFailed
from milepost.traces.trace import Trace, read_trace

EXIT_SOME_FAILED = 1
RESULT_NAME = "comparison.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCommand:
    """What the user asked for."""

    traces: Sequence[Path]
    served: ServedModel
    servers: Sequence[str] = tuple(SERVERS)
    options: ReplayOptions = field(default_factory=ReplayOptions)
    output: Path | None = None  # folder for the JSON and the plots; None: print only
    with_plots: bool = True


@dataclass(slots=True)
class _Run:
    """What has been measured so far, and when and on which sources it began."""

    taken: str
    commit: str
    measures: list[TraceMeasure] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once


def run_compare(command: CompareCommand) -> int:
    """Replay the traces on the servers, print a table, keep the numbers; return the exit status.

    What is known is printed and kept whatever happens. Raises BenchmarkFailed, KeyboardInterrupt.
    """
    model = Path(command.served.model)
    if not model.is_file():
        raise BenchmarkFailed(f"there is no model file {model}")
    traces = [read_trace(path) for path in command.traces]
    if command.output is not None:
        if command.with_plots:
            check_plots_possible()
        _make_folder(command.output)
    run = _Run(
        taken=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=find_commit(),
    )
    try:
        with tempfile.TemporaryDirectory(prefix="milepost-bench-") as folder:
            _replay_all(command, traces, run, Path(folder))
    finally:
        if run.measures:
            _show(run)
            _keep(command, run)
    return EXIT_SOME_FAILED if any(m.totals.num_failed for m in run.measures) else 0


def _replay_all(
    command: CompareCommand, traces: Sequence[Trace], run: _Run, log_folder: Path
) -> None:
    for number, trace in enumerate(traces):
        # Whoever goes first finds another machine than who goes second: they take turns at it.
        names = list(command.servers) if number % 2 == 0 else list(reversed(command.servers))
        for name in names:
            process = SERVERS[name](command.served, log_folder)
            run.notes |= dict.fromkeys(process.notes)
            with process:
                asyncio.run(_replay_on(process, trace, command.options, run))


async def _replay_on(
    process: ServerProcess, trace: Trace, options: ReplayOptions, run: _Run
) -> None:
    line = ProgressLine(f"{trace.name} on {process.name}", sys.stderr)
    async with ServerClient(process.url) as server:
        await server.connect()
        options = replace(options, restart=process.restart)
        replay = Replay(trace, server, options, line.show)
        try:
            await replay.run()
        finally:
            line.clear()
            if replay.measure.requests:
                run.measures.append(msgspec.structs.replace(replay.measure, server=process.name))


def _show(run: _Run) -> None:
    console = make_console()
    joined = join_measures(run.measures)
    console.print(make_totals_table([*run.measures, *joined]))
    for sentence in [*_compare_pairs(run.measures), *_compare_pairs(joined), *run.notes]:
        console.print(sentence, soft_wrap=True)
    for measure in run.measures:
        for note in describe_measure(measure):
            console.print(f"{measure.trace} on {measure.server}: {note}", soft_wrap=True)


def _compare_pairs(measures: Sequence[TraceMeasure]) -> list[str]:
    """Return a sentence for each trace that was replayed on the first server and on another."""
    sentences = []
    first = next(iter(SERVERS))
    for ours in measures:
        if ours.server == first:
            sentences += [
                describe_difference(ours, theirs)
                for theirs in measures
                if theirs.trace == ours.trace and theirs.server != first
            ]
    return sentences


def _keep(command: CompareCommand, run: _Run) -> None:
    if command.output is None:
        return
    comparison = _make_comparison(command, run)
    try:
        (command.output / RESULT_NAME).write_bytes(comparison.to_json())
        if command.with_plots:
            write_plots(comparison, command.output)
    except OSError as error:
        raise BenchmarkFailed(f"{command.output} cannot be written: {error.strerror}") from None


def _make_comparison(command: CompareCommand, run: _Run) -> Comparison:
    model = Path(command.served.model)
    return Comparison(
        taken=run.taken,
        commit=run.commit,
        machine=describe_machine(),
        versions=list_versions(),
        model={"name": model.name, "size_bytes": model.stat().st_size},
        settings=command.served.describe() | _describe_options(command.options),
        notes=tuple(run.notes),
        measures=tuple(run.measures),
    )


def _describe_options(options: ReplayOptions) -> dict[str, Any]:
    return {
        "closed_loop": options.closed,
        "concurrency": options.concurrency,
        "max_tokens": options.max_tokens,
        "max_requests": options.max_requests,
    }


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkFailed(f"{folder} cannot be written: {error.strerror}") from None

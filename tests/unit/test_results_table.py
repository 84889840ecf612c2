"""The tables in the documents say what the results say, and every result is in a document."""

from __future__ import annotations

import datetime
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from benchmarks.report import RESULTS
from benchmarks.results_table import make_pairs, make_table

from milepost.bench.comparison import Comparison, read_comparison
from milepost.bench.measures import RequestMeasure, TraceMeasure

DOCUMENT = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
# A row of `results_table` ends with the name of its file.
TABLES: dict[str, list[str]] = defaultdict(list)
for row, name in re.findall(r"^(\|.*\| `([\w.-]+)` \|)$", DOCUMENT, re.MULTILINE):
    if not name.endswith(".json"):
        TABLES[name].append(row)
NAMED = {
    *(f"{name}.json" for name in TABLES),
    *re.findall(r"`([\w.-]+\.json)`", DOCUMENT),
    *re.findall(r"\(\.\./benchmarks/results/([\w.-]+)\)", DOCUMENT),
}


def make_measure(server: str, num_prefilled: int | None) -> TraceMeasure:
    request = RequestMeasure(
        id=0,
        session="main",
        kind="turn",
        status="ok",
        num_prompt_tokens=2000,
        num_cached=None if num_prefilled is None else 2000 - num_prefilled,
        num_prefilled=num_prefilled,
        num_oracle=1000,
        num_prefilled_twice=None if num_prefilled is None else num_prefilled - 1000,
        ttft_s=0.25,
        prefill_ms=3000.0,
    )
    return TraceMeasure(trace="day", variant="day", server=server, took_s=4.0, requests=(request,))


def make_comparison(*measures: TraceMeasure, notes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(
        taken="",
        commit="0123456789ab",
        machine={},
        versions={},
        model={"name": "benchmark-hybrid.gguf"},
        settings={"cache_ram_mib": 63},
        notes=notes,
        measures=measures,
    )


def test_both_servers_stand_in_one_row() -> None:
    pair = make_comparison(make_measure("llama-server", 2000), make_measure("milepost", 1250))
    alone = make_comparison(make_measure("milepost", 1250))
    *_, line = make_pairs({"pair": pair, "alone": alone}).split("\n")
    assert line == (
        "| benchmark-hybrid | 63 MiB | day | 1 | 1.250 | 2.000 | 20.0% | 50.0% | 0.2 s | 1.00 × "
        "| `pair` |"
    )


def test_rows_have_ratios_budgets_and_what_is_missing() -> None:
    comparison = make_comparison(
        make_measure("milepost", 1250),
        make_measure("llama-server", None),
        notes=("milepost has no --cache-ram yet: 63 was not given to it",),
    )
    _, line, ours, theirs = make_table({"day": comparison}).split("\n")
    assert line.startswith("| --- | --- | --- | --- | ---: |")
    assert ours == (
        "| benchmark-hybrid | 63 MiB (not given) | day | milepost | 2,000 | 1,250 | 1.250 | 20.0% "
        "| 0.25 s, 0.25 s | 3 s | 4 s | `day` |"
    )
    assert "| 63 MiB | day | llama-server | 2,000 | not reported | - | - |" in theirs


def test_every_kept_result_is_named_in_the_document() -> None:
    kept = {path.name for path in RESULTS.iterdir()}
    assert kept == NAMED


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_tables_of_the_document_say_what_the_results_say(name: str) -> None:
    rows = make_pairs({name: read_comparison(RESULTS / f"{name}.json")}).split("\n")
    assert set(TABLES[name]) <= set(rows)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_when_it_was_taken_and_on_what(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert datetime.datetime.fromisoformat(result["taken"]) <= datetime.datetime.now(datetime.UTC)
    assert {"cpu", "memory_gib"} <= set(result["machine"])

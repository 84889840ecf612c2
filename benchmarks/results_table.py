"""The Markdown table of docs/benchmarks.md, from the results of comparisons.

python -m benchmarks.results_table benchmarks/results/agent_days-*/comparison.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from milepost.bench.comparison import Comparison, read_comparison
from milepost.bench.measures import Totals, TraceMeasure

HEADINGS = (
    *(
        "model",
        "cache budget",
        "trace",
        "server",
        "prompt tokens",
        "prefilled",
        "ratio to the oracle",
    ),
    *("twice-prefilled share", "first token: median, p95", "prefill", "all", "commit"),
)
NUM_TEXT_COLUMNS = 4


def main() -> None:
    """Print the table of the files that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    print(make_table(read_comparison(path) for path in parser.parse_args().files))


def make_table(comparisons: Iterable[Comparison]) -> str:
    """Return one row per comparison, trace and server."""
    rows = [
        HEADINGS,
        tuple("---" if i < NUM_TEXT_COLUMNS else "---:" for i in range(len(HEADINGS))),
    ]
    for comparison in comparisons:
        rows += [_make_row(comparison, measure) for measure in comparison.measures]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _make_row(comparison: Comparison, measure: TraceMeasure) -> tuple[str, ...]:
    totals = measure.totals
    return (
        Path(str(comparison.model["name"])).stem,
        _describe_budget(comparison, measure.server),
        measure.trace + (" (interrupted)" if measure.was_interrupted else ""),
        measure.server,
        f"{totals.num_prompt_tokens:,}",
        f"{totals.num_prefilled:,}" if totals.cached_share is not None else "not reported",
        _fixed(totals.ratio_to_oracle, 3),
        "-" if totals.prefilled_twice_share is None else f"{totals.prefilled_twice_share:.1%}",
        _describe_first_token(totals),
        f"{totals.prefill_ms / 1000:,.0f} s",
        f"{measure.took_s:,.0f} s",
        comparison.commit,
    )


def _describe_budget(comparison: Comparison, server: str) -> str:
    """Return the budget, and whether this server had to do without it."""
    budget = comparison.settings.get("cache_ram_mib")
    if budget is None:
        return "default"
    is_left_out = any(note.startswith(f"{server} has no --cache-ram") for note in comparison.notes)
    return f"{budget} MiB (not given)" if is_left_out else f"{budget} MiB"


def _describe_first_token(totals: Totals) -> str:
    if totals.ttft_s is None:
        return "-"
    return f"{totals.ttft_s.median:.2f} s, {totals.ttft_s.p95:.2f} s"


def _fixed(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"


if __name__ == "__main__":
    main()

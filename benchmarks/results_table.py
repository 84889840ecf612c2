"""The Markdown tables of docs/benchmarks.md, from the results of comparisons.

    python -m benchmarks.results_table [--pairs] benchmarks/results/agent_day-*.json

One row for each trace and server, or with `--pairs` one for each trace, with both servers in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from milepost.bench.comparison import Comparison, read_comparison
from milepost.bench.measures import Totals, TraceMeasure

Row = tuple[str, ...]

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
    *("twice-prefilled share", "first token: median, p95", "prefill", "all", "file"),
)
NUM_TEXT_COLUMNS = 4
PAIR_HEADINGS = (
    *("model", "cache budget", "trace", "requests", "prefilled ÷ oracle", "llama-server's"),
    *("twice", "llama-server's", "first tokens, sum", "of llama-server's", "file"),
)
NUM_PAIR_TEXT_COLUMNS = 3
SERVERS = ("milepost", "llama-server")


def main() -> None:
    """Print the table of the files that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--pairs", action="store_true", help="both servers in one row")
    arguments = parser.parse_args()
    make = make_pairs if arguments.pairs else make_table
    print(make({path.stem: read_comparison(path) for path in arguments.files}))


def make_pairs(comparisons: Mapping[str, Comparison]) -> str:
    """Return one row per comparison, by the name of its file, and trace that both servers ran."""
    rows = []
    for name, comparison in comparisons.items():
        for trace in dict.fromkeys(measure.trace for measure in comparison.measures):
            found = [measure for measure in comparison.measures if measure.trace == trace]
            by_server = {measure.server: measure for measure in found}
            if all(server in by_server for server in SERVERS):
                ours, theirs = (by_server[server] for server in SERVERS)
                rows.append((*_make_pair(comparison, ours, theirs), f"`{name}`"))
    return _join_rows(PAIR_HEADINGS, NUM_PAIR_TEXT_COLUMNS, rows)


def make_table(comparisons: Mapping[str, Comparison]) -> str:
    """Return one row per comparison, by the name of its file, trace and server."""
    rows = [
        (*_make_row(comparison, measure), f"`{name}`")
        for name, comparison in comparisons.items()
        for measure in comparison.measures
    ]
    return _join_rows(HEADINGS, NUM_TEXT_COLUMNS, rows)


def _join_rows(headings: Row, num_text_columns: int, rows: list[Row]) -> str:
    line = tuple("---" if i < num_text_columns else "---:" for i in range(len(headings)))
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, line, *rows))


def _make_pair(comparison: Comparison, ours: TraceMeasure, theirs: TraceMeasure) -> Row:
    our_wait_s, their_wait_s = _sum_first_tokens(ours), _sum_first_tokens(theirs)
    return (
        Path(str(comparison.model["name"])).stem,
        _describe_budget(comparison, ours.server),
        ours.trace.removeprefix("large-session."),
        f"{len(ours.requests)}",
        *(_fixed(measure.totals.ratio_to_oracle, 3) for measure in (ours, theirs)),
        *(_percent(measure.totals.prefilled_twice_share) for measure in (ours, theirs)),
        f"{our_wait_s:.1f} s",
        f"{our_wait_s / their_wait_s:.2f} ×" if their_wait_s else "-",
    )


def _sum_first_tokens(measure: TraceMeasure) -> float:
    return sum(request.ttft_s or 0.0 for request in measure.requests)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _make_row(comparison: Comparison, measure: TraceMeasure) -> Row:
    totals = measure.totals
    return (
        Path(str(comparison.model["name"])).stem,
        _describe_budget(comparison, measure.server),
        measure.trace + (" (interrupted)" if measure.was_interrupted else ""),
        measure.server,
        f"{totals.num_prompt_tokens:,}",
        f"{totals.num_prefilled:,}" if totals.cached_share is not None else "not reported",
        _fixed(totals.ratio_to_oracle, 3),
        _percent(totals.prefilled_twice_share),
        _describe_first_token(totals),
        f"{totals.prefill_ms / 1000:,.0f} s",
        f"{measure.took_s:,.0f} s",
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

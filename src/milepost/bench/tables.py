"""The tables of a replay, for people; everything in them is in the JSON too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from milepost.bench.measures import RequestMeasure, Spread, Totals, TraceMeasure, sum_up

NOT_REPORTED = "not reported"
WIDTH_WITHOUT_TERMINAL = 160  # so that a log or a file has each row on one line


def make_console() -> Console:
    """Return the console for results: standard output, wide where it is no terminal."""
    console = Console(highlight=False)
    return (
        console if console.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    )


def print_measures(
    console: Console, measures: Sequence[TraceMeasure], *, with_requests: bool
) -> None:
    """Print what was measured: totals, kinds, notes, and each request where that is wanted."""
    for measure in measures:
        if with_requests:
            console.print(make_requests_table(measure))
        console.print(make_kinds_table(measure))
    console.print(make_totals_table(measures))
    for measure in measures:
        for note in describe_measure(measure):
            console.print(f"{measure.trace}: {note}", soft_wrap=True)


def describe_measure(measure: TraceMeasure) -> list[str]:
    """Return the sentences that belong beside the numbers."""
    notes = list(measure.notes)
    if measure.was_interrupted:
        notes.insert(0, f"interrupted; requests measured: {len(measure.requests)}")
    if measure.requests and (measure.requests[0].num_cached or 0) > 0:
        notes.append("the server knew parts of the first prompt: it was not fresh")
    failed = [request for request in measure.requests if request.status == "failed"]
    if failed:
        first = failed[0]
        notes.append(f"failed: {len(failed)}, the first was request {first.id}: {first.error}")
    return notes


def make_totals_table(measures: Sequence[TraceMeasure]) -> Table:
    """Return one row per replay."""
    table = _make_table("totals", ["trace", "server"], _TOTALS_HEADINGS)
    for measure in measures:
        totals = measure.totals
        table.add_row(measure.trace, measure.server, str(totals.num_requests), *_cells_of(totals))
    return table


def make_kinds_table(measure: TraceMeasure) -> Table:
    """Return one row per kind of request."""
    table = _make_table(f"{measure.trace} by kind", ["kind"], _TOTALS_HEADINGS)
    for kind in sorted({request.kind for request in measure.requests}):
        totals = sum_up([request for request in measure.requests if request.kind == kind])
        table.add_row(kind, str(totals.num_requests), *_cells_of(totals))
    return table


def make_requests_table(measure: TraceMeasure) -> Table:
    """Return one row per request."""
    headings = ["prompt", "cached", "prefilled", "oracle", "twice", "ttft ms", "prefill ms"]
    table = _make_table(
        f"{measure.trace} on {measure.server}",
        ["id", "session", "kind", "status"],
        [*headings, "decoded", "tok/s"],
    )
    for request in measure.requests:
        table.add_row(
            *(str(request.id), request.session, request.kind, request.status),
            *_cells_of_request(request),
        )
    return table


_TOTALS_HEADINGS = (
    *("requests", "prompt", "cached", "prefilled", "oracle", "x oracle", "twice"),
    *("ttft ms", "p95", "prefill s", "tok/s"),
)


def _cells_of(totals: Totals) -> Iterable[str]:
    is_unreported = totals.cached_share is None
    yield _count(totals.num_prompt_tokens)
    yield NOT_REPORTED if is_unreported else f"{totals.cached_share:.1%}"
    yield NOT_REPORTED if is_unreported else _count(totals.num_prefilled)
    yield _count(totals.num_oracle or None)
    yield "-" if totals.ratio_to_oracle is None else f"{totals.ratio_to_oracle:.3f}"
    yield "-" if totals.prefilled_twice_share is None else f"{totals.prefilled_twice_share:.1%}"
    yield from _milliseconds(totals.ttft_s)
    yield f"{totals.prefill_ms / 1e3:.2f}" if totals.prefill_ms else "-"
    rate = totals.decode_tokens_per_s
    yield "-" if rate is None else f"{rate.median:.1f}"


def _cells_of_request(request: RequestMeasure) -> Iterable[str]:
    yield _count(request.num_prompt_tokens)
    yield _count(request.num_cached)
    yield _count(request.num_prefilled)
    yield _count(request.num_oracle)
    yield _count(request.num_prefilled_twice)
    yield "-" if request.ttft_s is None else f"{request.ttft_s * 1e3:.0f}"
    yield "-" if request.prefill_ms is None else f"{request.prefill_ms:.0f}"
    yield _count(request.num_decoded)
    yield "-" if request.decode_tokens_per_s is None else f"{request.decode_tokens_per_s:.1f}"


def _make_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _milliseconds(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    return f"{spread.median * 1e3:.0f}", f"{spread.p95 * 1e3:.0f}"

"""Plots of a comparison, as PNG and SVG: for each trace one panel, for each server one colour.

matplotlib is an extra of the package; `check_plots_possible` says so before hours are spent.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milepost.bench.comparison import Comparison
from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.errors import BenchmarkFailed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart in print, by most eyes, and where one covers the other.
COLOURS = ("#0b6e4f", "#c8553d", "#4a4e9c", "#8a6d1d")
MARKERS = {"#0b6e4f": "o", "#c8553d": "x", "#4a4e9c": "+", "#8a6d1d": "."}
ORACLE_COLOUR = "#222222"
PANEL_INCHES = (9.0, 2.6)
FORMATS = ("png", "svg")
BREAKS = ("compaction", "cancelled")  # kinds of requests that get a line


def check_plots_possible(package: str = "matplotlib") -> None:
    """Raise BenchmarkFailed where the package that draws is missing."""
    if importlib.util.find_spec(package) is None:
        raise BenchmarkFailed(
            "plots need matplotlib: pip install 'milepost[bench]', or give --no-plots"
        )


def write_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Write all plots of a comparison into a folder and return their paths. Raises OSError."""
    import matplotlib

    # Text stays text in the SVG, and the same numbers give the same bytes.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "milepost", "font.size": 9}
    written = []
    with matplotlib.rc_context(settings):
        for name, draw in PLOTS.items():
            figure = draw(comparison)
            for ending in FORMATS:
                path = folder / f"{name}.{ending}"
                metadata = {"Date": None} if ending == "svg" else None
                figure.savefig(path, dpi=110, metadata=metadata)
                written.append(path)
    return written


def draw_prefilled(comparison: Comparison) -> Figure:
    """Draw the prefilled tokens of each request against those of an ideal cache."""

    def draw(axes: Axes, trace: str) -> None:
        for colour, measure in _of_trace(comparison, trace):
            numbers, tokens = _known(measure.requests, lambda request: request.num_prefilled)
            marker = MARKERS[colour]
            axes.plot(numbers, tokens, marker, color=colour, markersize=4, label=measure.server)
        _draw_oracle(axes, [measure for _, measure in _of_trace(comparison, trace)])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("tokens prefilled")

    return _draw_panels(comparison, "Tokens prefilled per request", draw)


def draw_time_to_first_token(comparison: Comparison) -> Figure:
    """Draw the seconds to the first token along the trace."""

    def draw(axes: Axes, trace: str) -> None:
        for colour, measure in _of_trace(comparison, trace):
            numbers, seconds = _known(measure.requests, lambda request: request.ttft_s)
            axes.plot(numbers, seconds, "-", color=colour, linewidth=1.0, label=measure.server)
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)

    return _draw_panels(comparison, "Time to first token", draw)


def draw_totals(comparison: Comparison) -> Figure:
    """Draw, for each variant, how often the fewest possible tokens were prefilled."""
    figure, (axes,) = _make_figure(1, height_inches=1.2 + 0.45 * len(comparison.traces))
    servers = comparison.servers
    bar = 0.8 / len(servers)
    for index, (colour, server) in enumerate(zip(_colours(servers), servers, strict=True)):
        ratios = _ratios_of(comparison, server)
        places = [row - 0.4 + bar * (index + 0.5) for row, _ in ratios]
        widths = [ratio for _, ratio in ratios]
        if ratios:
            axes.barh(places, widths, height=bar, color=colour, label=server)
        for place, ratio in zip(places, widths, strict=True):
            axes.annotate(f" {ratio:.2f}", (ratio, place), va="center", fontsize=8)
    axes.axvline(1.0, color=ORACLE_COLOUR, linewidth=1.0)
    axes.set_yticks(range(len(comparison.traces)), comparison.traces)
    axes.invert_yaxis()
    axes.set_xlabel("tokens prefilled / fewest possible")
    axes.margins(x=0.12)
    _finish_axes(axes, f"Totals per variant, {_describe(comparison)}")
    return figure


PLOTS: dict[str, Callable[[Comparison], Figure]] = {
    "prefilled": draw_prefilled,
    "ttft": draw_time_to_first_token,
    "totals": draw_totals,
}


def _draw_panels(comparison: Comparison, title: str, draw: Callable[[Axes, str], None]) -> Figure:
    traces = comparison.traces
    figure, panels = _make_figure(len(traces))
    for axes, trace in zip(panels, traces, strict=True):
        draw(axes, trace)
        _finish_axes(axes, f"{trace}: {title.lower()}, {_describe(comparison)}")
        _mark_breaks(axes, comparison, trace)
    panels[-1].set_xlabel("request")
    return figure


def _make_figure(num_panels: int, height_inches: float | None = None) -> tuple[Figure, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    size = (width, height_inches or height * num_panels)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # no window system, no global state of pyplot
    return figure, list(figure.subplots(num_panels, 1, squeeze=False)[:, 0])


def _finish_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, pad=18)  # above the legend
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        frameon=False,
        fontsize=8,
        ncols=3,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
    )


def _describe(comparison: Comparison) -> str:
    budget = comparison.settings.get("cache_ram_mib")
    name = Path(str(comparison.model.get("name", "model"))).stem
    return name if budget is None else f"{name}, {budget} MiB for the cache"


def _draw_oracle(axes: Axes, measures: list[TraceMeasure]) -> None:
    """Draw the fewest possible tokens, which hardly depend on the server."""
    if measures:
        numbers, tokens = _known(measures[0].requests, lambda request: request.num_oracle)
        shown = [max(count, 1) for count in tokens]  # the scale has no zero
        axes.plot(numbers, shown, "-", color=ORACLE_COLOUR, linewidth=0.8, label="fewest possible")


def _ratios_of(comparison: Comparison, server: str) -> list[tuple[int, float]]:
    """Return the row of each trace that a server replayed, and its ratio to the oracle."""
    measures = [comparison.find(trace, server) for trace in comparison.traces]
    return [
        (row, ratio)
        for row, measure in enumerate(measures)
        if measure is not None and (ratio := measure.totals.ratio_to_oracle) is not None
    ]


def _mark_breaks(axes: Axes, comparison: Comparison, trace: str) -> None:
    """Draw a line where the client itself gave up what it had."""
    for _, measure in _of_trace(comparison, trace)[:1]:
        for request in measure.requests:
            if request.kind in BREAKS:
                axes.axvline(request.id, color="#bbbbbb", linewidth=0.6, linestyle=":")


def _of_trace(comparison: Comparison, trace: str) -> list[tuple[str, TraceMeasure]]:
    servers = comparison.servers
    return [
        (colour, measure)
        for colour, server in zip(_colours(servers), servers, strict=True)
        if (measure := comparison.find(trace, server)) is not None
    ]


def _colours(servers: list[str]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(servers))]


def _known(
    requests: Iterable[RequestMeasure], choose: Callable[[RequestMeasure], float | None]
) -> tuple[list[int], list[float]]:
    """Return the numbers of the requests that have a value, and the values."""
    pairs = [(r.id, value) for r in requests if (value := choose(r)) is not None]
    return [number for number, _ in pairs], [value for _, value in pairs]

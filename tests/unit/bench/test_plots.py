"""Plots come as PNG and SVG, the same for the same numbers, also with gaps in them."""

from pathlib import Path

import msgspec
import pytest
from matplotlib.patches import Rectangle

from milepost.bench import plots
from milepost.bench.comparison import Comparison
from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.errors import BenchmarkFailed


def make_measure(trace: str, server: str, factor: int) -> TraceMeasure:
    requests = tuple(
        RequestMeasure(
            id=number,
            session="main",
            kind="compaction" if number == 3 else "turn",
            status="ok",
            num_prefilled=factor * (10 + number),
            num_oracle=10 + number,
            num_prefilled_twice=(factor - 1) * (10 + number),
            ttft_s=0.1 * number,
        )
        for number in range(5)
    )
    return TraceMeasure(trace=trace, variant=trace, server=server, requests=requests)


def make_comparison(*measures: TraceMeasure) -> Comparison:
    return Comparison(
        taken="2026-01-01T00:00:00+00:00",
        commit="",
        machine={},
        versions={},
        model={"name": "tiny.gguf"},
        settings={"cache_ram_mib": 63},
        measures=measures,
    )


BOTH = make_comparison(
    make_measure("day", "milepost", 1),
    make_measure("day", "llama-server", 2),
    make_measure("night", "milepost", 1),
    make_measure("night", "llama-server", 3),
)


def test_every_plot_is_written_in_both_formats(tmp_path: Path) -> None:
    written = plots.write_plots(BOTH, tmp_path)
    assert sorted(path.name for path in written) == [
        *("prefilled.png", "prefilled.svg", "totals.png", "totals.svg", "ttft.png", "ttft.svg")
    ]
    assert all(path.stat().st_size > 2000 for path in written)
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_numbers_give_the_same_svg(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        plots.write_plots(BOTH, folder)
    assert (first / "prefilled.svg").read_bytes() == (second / "prefilled.svg").read_bytes()


def test_one_panel_per_trace_with_servers_and_the_oracle() -> None:
    figure = plots.draw_prefilled(BOTH)
    assert len(figure.axes) == 2
    legend = figure.axes[0].get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["milepost", "llama-server", "fewest possible"]
    assert "day" in figure.axes[0].get_title("left")
    assert "63 MiB" in figure.axes[0].get_title("left")


def test_totals_are_ratios_to_the_oracle() -> None:
    (axes,) = plots.draw_totals(BOTH).axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert sorted(bar.get_width() for bar in bars) == [1.0, 1.0, 2.0, 3.0]


def test_a_server_that_reports_nothing_leaves_a_gap(tmp_path: Path) -> None:
    silent = msgspec.structs.replace(
        make_measure("day", "other", 1),
        requests=(RequestMeasure(id=0, session="main", kind="turn", status="ok"),),
    )
    assert plots.write_plots(make_comparison(silent), tmp_path)


def test_a_trace_that_only_one_server_replayed_is_drawn(tmp_path: Path) -> None:
    comparison = make_comparison(
        make_measure("day", "milepost", 1),
        make_measure("day", "llama-server", 2),
        make_measure("night", "llama-server", 2),
    )
    assert plots.write_plots(comparison, tmp_path)


def test_missing_matplotlib_is_said_in_one_sentence() -> None:
    with pytest.raises(BenchmarkFailed, match=r"pip install 'milepost\[bench\]'"):
        plots.check_plots_possible("a_package_that_is_nowhere")

"""The table in the documents says what the results say."""

from benchmarks.results_table import make_pairs, make_table

from milepost.bench.comparison import Comparison
from milepost.bench.measures import RequestMeasure, TraceMeasure


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
    *_, line = make_pairs([pair, alone]).split("\n")
    assert line == (
        "| benchmark-hybrid | 63 MiB | day | 1 | 1.250 | 2.000 | 20.0% | 50.0% | 0.2 s | 1.00 × "
        "| 0123456789ab |"
    )


def test_rows_have_ratios_budgets_and_what_is_missing() -> None:
    comparison = make_comparison(
        make_measure("milepost", 1250),
        make_measure("llama-server", None),
        notes=("milepost has no --cache-ram yet: 63 was not given to it",),
    )
    _, line, ours, theirs = make_table([comparison]).split("\n")
    assert line.startswith("| --- | --- | --- | --- | ---: |")
    assert ours == (
        "| benchmark-hybrid | 63 MiB (not given) | day | milepost | 2,000 | 1,250 | 1.250 | 20.0% "
        "| 0.25 s, 0.25 s | 3 s | 4 s | 0123456789ab |"
    )
    assert "| 63 MiB | day | llama-server | 2,000 | not reported | - | - |" in theirs

"""A comparison is kept compactly, reads back, and says in words how two servers did."""

import json
from typing import Any

import msgspec
import pytest

from milepost.bench.comparison import (
    Comparison,
    describe_difference,
    join_measures,
    read_comparison,
)
from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.errors import BenchmarkFailed


def make_request(number: int, prefilled: int, ttft_s: float = 0.5) -> RequestMeasure:
    return RequestMeasure(
        id=number,
        session="main",
        kind="turn",
        status="ok",
        num_prompt_tokens=100,
        num_cached=100 - prefilled,
        num_prefilled=prefilled,
        num_oracle=10,
        num_prefilled_twice=prefilled - 10,
        ttft_s=ttft_s,
    )


def make_measure(server: str, *prefilled: int, trace: str = "day", **more: Any) -> TraceMeasure:
    requests = tuple(make_request(number, count) for number, count in enumerate(prefilled))
    fields: dict[str, Any] = {"variant": "day", "took_s": 2.0} | more
    return TraceMeasure(trace=trace, server=server, requests=requests, **fields)


def make_comparison(*measures: TraceMeasure) -> Comparison:
    return Comparison(
        taken="2026-01-01T00:00:00+00:00",
        commit="0123456789ab",
        machine={"cpu": "a processor"},
        versions={"python": "3.11.0"},
        model={"name": "tiny.gguf", "size_bytes": 1},
        settings={"ctx_size": 4096},
        measures=measures,
    )


def test_json_reads_back() -> None:
    comparison = make_comparison(make_measure("milepost", 20, 30), make_measure("other", 40))
    assert Comparison.from_json(comparison.to_json()) == comparison


def test_json_has_one_line_per_request_and_the_totals() -> None:
    text = make_comparison(make_measure("milepost", 20, 30)).to_json().decode()
    assert '\n[0,"main","turn","ok",100,80,20,10,10,0.5,' in text
    measure = json.loads(text)["measures"][0]
    assert measure["columns"][:3] == ["id", "session", "kind"]
    assert measure["totals"]["num_prefilled"] == 50


def test_times_are_kept_to_a_hundred_thousandth() -> None:
    request = make_request(0, 20, ttft_s=0.123456789)
    measure = msgspec.structs.replace(make_measure("milepost"), requests=(request,))
    read = Comparison.from_json(make_comparison(measure).to_json())
    assert read.measures[0].requests[0].ttft_s == 0.12346


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"measures": [{}]}', '{"measures": 3}'])
def test_something_else_is_refused(text: str) -> None:
    with pytest.raises(BenchmarkFailed, match="not the result of a comparison"):
        Comparison.from_json(text)


def test_another_format_is_refused() -> None:
    text = make_comparison().to_json().replace(b'"format": 1', b'"format": 9')
    with pytest.raises(BenchmarkFailed, match="format 9"):
        Comparison.from_json(text)


def test_a_missing_file_is_one_sentence(tmp_path: Any) -> None:
    with pytest.raises(BenchmarkFailed, match="cannot be read: No such file"):
        read_comparison(tmp_path / "none.json")


def test_measures_are_found_by_trace_and_server() -> None:
    first, second = make_measure("milepost", 20), make_measure("other", 20, trace="night")
    comparison = make_comparison(first, second)
    assert comparison.find("night", "other") is second
    assert comparison.find("night", "milepost") is None
    assert comparison.servers == ["milepost", "other"]
    assert comparison.traces == ["day", "night"]


def test_all_traces_of_a_server_are_joined() -> None:
    day, night = make_measure("milepost", 20, 30), make_measure("milepost", 40, trace="night")
    (joined,) = join_measures([day, make_measure("other", 99), night])
    assert (joined.trace, joined.server, joined.took_s) == ("all traces", "milepost", 4.0)
    assert joined.totals.num_prefilled == 90


def test_difference_names_what_both_reported() -> None:
    sentence = describe_difference(
        make_measure("milepost", 20, took_s=1.0), make_measure("other", 40, took_s=4.0)
    )
    assert sentence == (
        "day: milepost against other: 0.500 x the prefilled tokens, 1.00 x the median time to "
        "first token (p95: 1.00 x), 0.25 x the time for all"
    )


def test_difference_of_nothing_says_so() -> None:
    empty = make_measure("milepost", took_s=0.0)
    assert describe_difference(empty, empty).endswith("nothing in common to compare")

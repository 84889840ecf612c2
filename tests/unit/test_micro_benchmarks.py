"""The micro benchmarks measure what they say, on a tiny model and once."""

from pathlib import Path

import pytest
from benchmarks.agent_days import DayRun, keep_result
from benchmarks.micro import (
    CHUNKS,
    longest_request,
    measure_protocol,
    measure_rendering,
    measure_tokenising,
    take_ms,
)
from benchmarks.workloads.agent_day import make_agent_day
from tests.models import write_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("full", tmp_path_factory.mktemp("micro") / "tiny.gguf")


def test_longest_request_is_the_one_with_most_text() -> None:
    longest = longest_request()
    assert not longest.needs
    sizes = {request.id: len(str(request.messages)) for request in make_agent_day().requests()}
    assert sizes[longest.id] > 80_000


def test_calls_are_warmed_up_and_averaged() -> None:
    calls: list[int] = []
    values = take_ms(2, lambda: calls.append(1), calls=3)
    assert len(values) == 2
    assert len(calls) == 1 + 2 * 3


def test_protocol_is_measured_for_short_and_long_prompts() -> None:
    values = measure_protocol(Path(), 1, 1)
    assert list(values) == ["round trip, 64 tokens", "round trip, 30,000 tokens"]
    assert all(0 < value < 1000 for row in values.values() for value in row)


def test_rendering_and_tokenising_work_on_any_model(tiny: Path) -> None:
    rendered = measure_rendering(tiny, 1, 1)
    assert [name.split()[0] for name in rendered] == ["check", "render"]
    tokenised = measure_tokenising(tiny, 1, 1)
    assert [name.split(" of ")[0] for name in list(tokenised)[1:]] == [
        "prompt tokeniser, first turn",
        "prompt tokeniser, next turn",
    ]


def test_chunks_begin_with_the_one_that_others_are_compared_with() -> None:
    assert CHUNKS[0] == max(CHUNKS)


@pytest.mark.parametrize(("budget", "cache_ram_mib"), [("ample", 8192), ("tight", 63)])
def test_budgets_of_a_day(budget: str, cache_ram_mib: int) -> None:
    served = DayRun("hybrid", budget).serve(Path("hybrid.gguf"), Path("projector.gguf"), 2)  # type: ignore[arg-type]
    assert served.cache_ram_mib == cache_ram_mib
    assert (served.ctx_checkpoints or 0) >= 32
    assert served.ctx_size >= 36_000


def test_of_a_day_the_numbers_are_kept_and_the_plots_asked_for(tmp_path: Path) -> None:
    made, results = tmp_path / "made", tmp_path / "results"
    made.mkdir()
    results.mkdir()
    for name in ("comparison.json", "ttft.png", "ttft.svg", "totals.png"):
        (made / name).write_text(name)

    keep_result(made, results / "agent_day-window-tight", ["ttft"])

    kept = {path.name: path.read_text() for path in results.iterdir()}
    assert kept == {
        "agent_day-window-tight.json": "comparison.json",
        "agent_day-window-tight-ttft.png": "ttft.png",
    }


def test_of_a_day_that_nothing_was_measured_of_nothing_is_kept(tmp_path: Path) -> None:
    keep_result(tmp_path / "made", tmp_path / "kept", ["ttft"])
    assert list(tmp_path.iterdir()) == []

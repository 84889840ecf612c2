"""Results of benchmarks say what they must, and nothing that names the machine."""

import json
from pathlib import Path

import pytest
from benchmarks.report import Row, Run, Target, divide_rows, save
from tests import models


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("at least", 2.0), "holds"),
        (Target("at least", 2.1), "missed"),
        (Target("at most", 2.0), "holds"),
        (Target("at most", 1.9), "missed"),
        (None, ""),
    ],
)
def test_verdict_compares_the_median(target: Target | None, verdict: str) -> None:
    assert Row("speed", "x", (9.0, 1.0, 2.0), target).verdict == verdict


def test_ratios_are_taken_repeat_by_repeat() -> None:
    ours, theirs = Row("ours", "tokens/s", (10.0, 40.0)), Row("theirs", "tokens/s", (5.0, 10.0))
    assert divide_rows("ratio", ours, theirs, Target("at least", 1.0)).values == (2.0, 4.0)


def test_ratios_need_as_many_repeats_on_both_sides() -> None:
    with pytest.raises(ValueError, match="shorter"):
        divide_rows("ratio", Row("a", "s", (1.0, 2.0)), Row("b", "s", (1.0,)), Target("at most", 1))


def test_saved_results_hold_every_value_and_the_settings(tmp_path: Path) -> None:
    model = models.write_model("full", tmp_path / "tiny.gguf")
    run = Run("try", model, {"threads": 2}, tmp_path)
    result = json.loads(save(run, [Row("time", "s", (3.0, 1.0, 2.0))], tmp_path).read_text("utf-8"))
    assert result["settings"] == {"threads": 2}
    assert result["model"]["name"] == "tiny.gguf"
    assert result["rows"][0]["values"] == [3.0, 1.0, 2.0]
    assert (result["rows"][0]["median"], result["rows"][0]["spread"]) == (2.0, 1.0)


def test_saved_results_name_neither_machine_nor_folder(tmp_path: Path) -> None:
    model = models.write_model("full", tmp_path / "tiny.gguf")
    text = save(Run("try", model, {}, tmp_path), [Row("time", "s", (1.0,))], tmp_path).read_text()
    assert str(tmp_path) not in text
    assert set(json.loads(text)["machine"]) == {
        "cpu",
        "physical_cores",
        "logical_cores",
        "memory_gib",
        "system",
    }

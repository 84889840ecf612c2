"""`milepost bench compare` starts both servers, restarts them, and keeps what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import models

from milepost.bench.comparison import Comparison, read_comparison
from milepost.cli.main import run
from milepost.traces.trace import Trace, TraceLine, write_trace

NUM_TURNS = 4
FLAGS = ("-c", "4096", "-np", "2", "-t", "1", "--max-tokens", "4")


def write_small_trace(path: Path) -> Path:
    thread: list[dict[str, Any]] = [{"role": "system", "content": "Work with care. " * 20}]
    for turn in range(NUM_TURNS):
        thread.append({"role": "user", "content": f"Part {turn}: " + "go on; " * 15})
        thread.append({"role": "assistant", "content": f"Part {turn} is done."})
    lines = [
        TraceLine(
            id=turn,
            session="main",
            kind="turn",
            t=float(turn),
            upto=2 + 2 * turn,
            reply=2 + 2 * turn,
            markers={"restart_before": True} if turn == 2 else {},
        )
        for turn in range(NUM_TURNS)
    ]
    write_trace(path, Trace(name="small", variant="small", threads={"main": thread}, lines=lines))
    return path


@pytest.fixture(scope="module")
def compared(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Comparison:
    """The result of one comparison on the tiny full-attention model."""
    folder = tmp_path_factory.mktemp("compare")
    trace = write_small_trace(folder / "small.jsonl")
    budget = ("--cache-ram", "5", "--ctx-checkpoints", "8")
    output = folder / "new" / "results"
    arguments = ["bench", "compare", str(trace), "-m", str(tiny_models["full"]), *FLAGS, *budget]
    assert run([*arguments, "-o", str(output)]) == 0
    assert (output / "totals.png").exists()
    assert (output / "totals.svg").exists()
    return read_comparison(output / "comparison.json")


def test_both_servers_answer_every_request(compared: Comparison) -> None:
    assert compared.servers == ["milepost", "llama-server"]
    for measure in compared.measures:
        assert [request.status for request in measure.requests] == ["ok"] * NUM_TURNS
        assert not measure.was_interrupted


def test_both_servers_count_the_same_prompts(compared: Comparison) -> None:
    ours, theirs = compared.measures
    assert [r.num_prompt_tokens for r in ours.requests] == [
        r.num_prompt_tokens for r in theirs.requests
    ]
    assert ours.totals.num_oracle > 0


def test_a_restart_costs_whatever_is_not_kept_elsewhere(compared: Comparison) -> None:
    theirs = compared.find("small", "llama-server")
    assert theirs is not None
    assert [request.num_cached == 0 for request in theirs.requests] == [True, False, True, False]


def test_result_says_what_was_compared(compared: Comparison) -> None:
    assert compared.model["name"] == "tiny-full.gguf"
    assert compared.settings["cache_ram_mib"] == 5
    assert compared.settings["max_tokens"] == 4
    assert compared.settings["threads"] == 1


def test_one_server_alone_can_be_measured(
    tiny_models: dict[models.Kind, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_small_trace(tmp_path / "small.jsonl")
    arguments = ["bench", "compare", str(trace), "-m", str(tiny_models["full"]), *FLAGS]
    assert run([*arguments, "--server", "llama-server", "--max-requests", "2"]) == 0
    printed = capsys.readouterr().out
    assert "llama-server" in printed
    assert "milepost" not in printed


def test_a_model_that_is_no_model_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_small_trace(tmp_path / "small.jsonl")
    arguments = ["bench", "compare", str(trace), "-m", str(tmp_path / "none.gguf")]
    assert run(arguments) == 1
    assert capsys.readouterr().err == (
        f"milepost: error: there is no model file {tmp_path / 'none.gguf'}\n"
    )


def test_a_context_that_is_too_small_is_one_sentence(
    tiny_models: dict[models.Kind, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_small_trace(tmp_path / "small.jsonl")
    arguments = ["bench", "compare", str(trace), "-m", str(tiny_models["full"]), *FLAGS]
    assert run([*arguments, "-c", "512", "--server", "llama-server"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("milepost: error: ")
    assert "context" in error

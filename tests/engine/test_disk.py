"""A restarted engine goes on from disk, and answers as if nothing had been in between."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import Answer, RunningEngine, check_same, prompt_tokens, running_engine

from milepost.protocol.messages import Boundary

FIELDS: dict[str, Any] = {"max_tokens": 4, "num_logprobs": 10}


def disk(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return the settings of an engine with a disk cache of its own."""
    return {
        "parallel": 1,
        "cache_on_disk": True,
        "cache_dir": str(tmp_path),
        "cache_disk": 1.0,
        **settings,
    }


def source(answer: Answer) -> str:
    assert answer.end.cache is not None
    return answer.end.cache.source


def wait_until_written(engine: RunningEngine, num_blobs: int = 1) -> None:
    deadline_s = time.monotonic() + 20
    while engine.disk_sizes().num_blobs < num_blobs:
        assert time.monotonic() < deadline_s, "nothing was written"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", models.KINDS)
def test_the_next_turn_after_a_restart_computes_what_is_new(
    tiny_models: dict[models.Kind, Path],
    fresh_engines: Engines,
    kind: models.Kind,
    tmp_path: Path,
) -> None:
    prompt = prompt_tokens(700, seed=200)
    with running_engine(tiny_models[kind], **disk(tmp_path)) as engine:
        first = engine.ask(prompt, **FIELDS)
    longer = prompt + first.tokens + prompt_tokens(30, seed=201)

    with running_engine(tiny_models[kind], **disk(tmp_path, parallel=2, ctx_size=4096)) as engine:
        answer = engine.ask(longer, **FIELDS)

    assert source(answer) == "disk"
    assert answer.end.timings.cache_n == len(prompt) + len(first.tokens) - 1
    check_same(answer, fresh_engines(kind).ask(longer, cache_prompt=False, **FIELDS))


@pytest.mark.parametrize("kind", ["window", "recurrent", "hybrid"])
def test_the_same_prompt_after_a_restart_computes_nothing(
    tiny_models: dict[models.Kind, Path],
    fresh_engines: Engines,
    kind: models.Kind,
    tmp_path: Path,
) -> None:
    prompt = prompt_tokens(700, seed=230)
    with running_engine(tiny_models[kind], **disk(tmp_path)) as engine:
        engine.ask(prompt, **FIELDS)

    with running_engine(tiny_models[kind], **disk(tmp_path)) as engine:
        again = engine.ask(prompt, **FIELDS)
        assert engine.counters().num_prefilled_tokens == 0

    assert (source(again), again.end.timings.cache_n) == ("disk", len(prompt))
    check_same(again, fresh_engines(kind).ask(prompt, cache_prompt=False, **FIELDS))


def test_what_changes_bytes_has_a_folder_of_its_own(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    prompt = prompt_tokens(300, seed=202)
    for settings in ({}, {"cache_type_k": "q8_0"}, {"rope_freq_scale": 0.5}):
        with running_engine(tiny_models["full"], **disk(tmp_path, **settings)) as engine:
            assert source(engine.ask(prompt, **FIELDS)) == "none"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_quiet_engine_writes_and_a_kill_loses_nothing_of_it(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    prompt = prompt_tokens(700, seed=203)
    with running_engine(tiny_models["hybrid"], **disk(tmp_path)) as engine:
        engine.ask(prompt, **FIELDS)
        wait_until_written(engine, 3)  # cells, the end of the prompt, the end of the answer
        process = engine.supervisor._process
        assert process is not None
        process.send_signal(signal.SIGKILL)
    with running_engine(tiny_models["hybrid"], **disk(tmp_path)) as engine:
        answer = engine.ask(prompt + prompt_tokens(30, seed=204), **FIELDS)
    assert (source(answer), answer.end.timings.cache_n) == ("disk", 700)


@pytest.mark.parametrize("sync", ["turn", "exit"])
def test_when_it_is_written_can_be_chosen(
    tiny_models: dict[models.Kind, Path], tmp_path: Path, sync: str
) -> None:
    with running_engine(tiny_models["full"], **disk(tmp_path, cache_disk_sync=sync)) as engine:
        engine.ask(prompt_tokens(300, seed=205), **FIELDS)
        if sync == "turn":
            wait_until_written(engine)
        else:
            assert engine.disk_sizes().num_blobs == 0
    assert len(list(tmp_path.rglob("blobs/*/*"))) > 0


def test_a_system_prompt_is_shared_by_conversations_of_different_runs(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    system = prompt_tokens(600, seed=206)
    fields = {**FIELDS, "boundaries": (Boundary(pos=600, kind="system_end"),)}
    for seed, expected in ((207, 0), (208, 600), (209, 600)):
        with running_engine(tiny_models["hybrid"], **disk(tmp_path)) as engine:
            answer = engine.ask(system + prompt_tokens(100, seed=seed), **fields)
            assert answer.end.timings.cache_n == expected


def test_damaged_files_are_misses(
    tiny_models: dict[models.Kind, Path], fresh_engines: Engines, tmp_path: Path
) -> None:
    prompt = prompt_tokens(700, seed=210)
    with running_engine(tiny_models["hybrid"], **disk(tmp_path)) as engine:
        engine.ask(prompt, **FIELDS)
    for path in tmp_path.rglob("blobs/*/*"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with running_engine(tiny_models["hybrid"], **disk(tmp_path)) as engine:
        longer = prompt + prompt_tokens(30, seed=213)
        answer = engine.ask(longer, **FIELDS)
        assert engine.disk_sizes().num_lost > 0
    assert answer.end.timings.cache_n == 0
    check_same(answer, fresh_engines("hybrid").ask(longer, cache_prompt=False, **FIELDS))


def test_a_folder_that_cannot_be_used_is_no_reason_to_fail(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with running_engine(tiny_models["full"], **disk(blocked / "cache")) as engine:
        assert engine.ask(prompt_tokens(50, seed=211), max_tokens=2).reason == "limit"
        assert engine.disk_sizes().budget_bytes == 0


def test_clearing_removes_what_is_on_disk(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    prompt = prompt_tokens(300, seed=212)
    settings = disk(tmp_path, cache_disk_sync="turn")
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        engine.ask(prompt, **FIELDS)
        wait_until_written(engine, 3)
        engine.run(engine.client.change_cache("clear"))
    assert not list(tmp_path.rglob("blobs/*/*"))
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        again = engine.ask(prompt + prompt_tokens(30, seed=214), **FIELDS)
        assert again.end.timings.cache_n == 0


def test_a_folder_that_is_deleted_meanwhile_costs_only_what_was_in_it(
    tiny_models: dict[models.Kind, Path], fresh_engines: Engines, tmp_path: Path
) -> None:
    settings = disk(tmp_path / "cache", cache_disk_sync="turn")
    prompt = prompt_tokens(700, seed=215)
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        engine.ask(prompt, **FIELDS)
        wait_until_written(engine, 3)
        shutil.rmtree(tmp_path / "cache")
        longer = prompt + prompt_tokens(30, seed=216)
        answer = engine.ask(longer, **FIELDS)
        other = engine.ask(prompt_tokens(300, seed=217), **FIELDS)
        assert (answer.reason, other.reason) == ("limit", "limit")
    check_same(answer, fresh_engines("hybrid").ask(longer, cache_prompt=False, **FIELDS))
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        again = engine.ask(prompt_tokens(300, seed=217) + [1, 2, 3], **FIELDS)
        assert source(again) == "disk"


def test_two_engines_share_a_folder(
    tiny_models: dict[models.Kind, Path], fresh_engines: Engines, tmp_path: Path
) -> None:
    settings = disk(tmp_path, cache_disk_sync="turn")
    prompts = [prompt_tokens(400, seed=seed) for seed in (218, 219)]
    with (
        running_engine(tiny_models["hybrid"], **settings) as one,
        running_engine(tiny_models["hybrid"], **settings) as other,
    ):
        for engine, prompt in zip((one, other), prompts, strict=True):
            engine.ask(prompt, **FIELDS)
            engine.ask(prompts[0], **FIELDS)
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        for seed, prompt in enumerate(prompts):
            longer = prompt + prompt_tokens(30, seed=220 + seed)
            answer = engine.ask(longer, **FIELDS)
            assert source(answer) == "disk"
            assert answer.end.timings.cache_n == 400
            check_same(answer, fresh_engines("hybrid").ask(longer, cache_prompt=False, **FIELDS))


@pytest.mark.parametrize("kind", models.KINDS)
def test_an_engine_goes_on_from_what_another_one_has_stored(
    tiny_models: dict[models.Kind, Path],
    fresh_engines: Engines,
    kind: models.Kind,
    tmp_path: Path,
) -> None:
    settings = disk(tmp_path, cache_disk_sync="turn")
    prompt = prompt_tokens(700, seed=240)
    longer = prompt + prompt_tokens(30, seed=241)
    with (
        running_engine(tiny_models[kind], **settings) as one,
        running_engine(tiny_models[kind], **settings) as other,
    ):
        first = one.ask(prompt, **FIELDS)
        wait_until_written(one, 1 if kind == "full" else 2)
        deadline_s = time.monotonic() + 20
        while other.disk_sizes().num_blobs < one.disk_sizes().num_blobs:
            assert time.monotonic() < deadline_s, "it never learnt of it"
            time.sleep(0.05)
            # An engine that sleeps looks when a request comes: this one is not known anywhere.
            other.ask(prompt_tokens(20, seed=242), max_tokens=1, cache_prompt=False)
        answer = other.ask(longer, **FIELDS)
    assert first.end.timings.cache_n == 0
    assert source(answer) == "disk"
    assert answer.end.timings.cache_n >= 600
    check_same(answer, fresh_engines(kind).ask(longer, cache_prompt=False, **FIELDS))


def test_an_index_of_a_newer_version_is_left_alone(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    prompt = prompt_tokens(300, seed=222)
    with running_engine(tiny_models["full"], **disk(tmp_path)) as engine:
        engine.ask(prompt, **FIELDS)
    (index,) = tmp_path.glob("*/index.sqlite")
    with contextlib.closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with running_engine(tiny_models["full"], **disk(tmp_path)) as engine:
        assert source(engine.ask(prompt + [1, 2, 3], **FIELDS)) == "none"
    with contextlib.closing(sqlite3.connect(index)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)

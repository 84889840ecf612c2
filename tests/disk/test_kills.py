"""The process is killed at each step of a write: nothing valid is lost, nothing wrong is read."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from tests.disk_cache import TIMEOUT_S, blob_paths, finish, history, open_store, payload

from milepost.cache.disk.blob_files import STEPS

# From here on the file is whole and in its place.
SAFE_STEPS = STEPS[STEPS.index("renamed") :]


def write_and_die(root: Path, fatal_step: str) -> None:
    def die_at(step: str) -> None:
        if step == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = open_store(root, on_step=die_at)
    store.put_segment(history(80), 0, payload(300_000, seed=2))
    store.flush(TIMEOUT_S)


def run_until_killed(root: Path, fatal_step: str) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=write_and_die, args=(root, fatal_step)
    )
    process.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("fatal_step", STEPS)
def test_a_kill_at_any_step_of_a_write(tmp_path: Path, fatal_step: str) -> None:
    store = open_store(tmp_path)
    store.put_segment(history(50), 0, payload(1000))
    finish(store)
    store.close(TIMEOUT_S)

    run_until_killed(tmp_path, fatal_step)

    store = open_store(tmp_path)
    forest = store.load()
    found = {blob.end: store.read(blob.id) for blob in forest.blobs}
    expected = {50: payload(1000)}
    if fatal_step in SAFE_STEPS:
        expected[80] = payload(300_000, seed=2)
    assert found == expected
    for blob in forest.blobs:
        tokens = forest.runs.history(blob.run, blob.end)
        assert tokens.tolist() == history(blob.end).tolist()

    store.put_segment(history(80), 0, payload(300_000, seed=3))  # and life goes on
    (completion,) = finish(store)
    assert completion.was_known == (fatal_step in SAFE_STEPS)
    assert len(blob_paths(store)) == 2
    store.close(TIMEOUT_S)


def write_until_killed(root: Path) -> None:
    store = open_store(root)
    for seed in range(10_000):
        store.put_segment(history(40, seed), 0, payload(200_000, seed))
        store.remove(list(store._blobs)[:-5])
        store.take_completions()


@pytest.mark.parametrize("delay_s", [0.8, 1.1, 1.5])
def test_a_kill_at_any_time(tmp_path: Path, delay_s: float) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=write_until_killed, args=(tmp_path,)
    )
    process.start()
    process.join(delay_s)
    assert process.is_alive()
    process.kill()
    process.join()

    store = open_store(tmp_path)
    forest = store.load()
    seeds = {history(40, seed).tobytes(): seed for seed in range(10_000)} if forest.blobs else {}
    for blob in forest.blobs:
        seed = seeds[forest.runs.history(blob.run, blob.end).tobytes()]
        assert store.read(blob.id) == payload(200_000, seed)
    assert len(blob_paths(store)) == len(forest.blobs)
    store.close(TIMEOUT_S)

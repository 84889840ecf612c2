"""The tree and the disk agree: what was written is known again, and what is lost is a miss."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.disk_cache import TIMEOUT_S, branch, history, open_store, payload

from milepost.cache import CacheLimits, CacheTraits, PrefixCache
from milepost.cache.disk.tier import PromptEnd, choose_saved
from milepost.cache.match import StoredState
from milepost.errors import StoredStateLost
from milepost.kinds import MemoryKind

BYTES_PER_TOKEN = 8


class Run:
    """One run of a program: a cache, and the disk below it."""

    def __init__(self, root: Path, kind: MemoryKind = "hybrid", **limits: Any) -> None:
        ram = CacheLimits(budget_bytes=limits.pop("ram_bytes", 1 << 20))
        self.store = open_store(root, **limits)
        self.cache = PrefixCache(CacheTraits.of_kind(kind), ram)
        self.loaded = self.cache.attach_disk(self.store, 0.0)

    def compute(self, tokens: np.ndarray, kind: str = "reply_end") -> None:
        """Keep what a context that holds these tokens would give."""
        if self.cache.traits.has_states:
            self.cache.add_checkpoint(tokens, state_of(tokens), kind, 0.0)  # type: ignore[arg-type]
        if self.cache.traits.has_segments:
            start = self.cache.saved_until(tokens)
            self.cache.add_segment(tokens, start, cells_of(tokens, start), 0.0)
        self.cache.check_invariants()

    def save(self, tokens: np.ndarray, num_prompt_tokens: int = 0) -> None:
        assert self.cache.write_history(tokens, prompt_end(tokens, num_prompt_tokens))
        self.settle()

    def settle(self) -> None:
        assert self.store.flush(TIMEOUT_S)
        self.cache.settle_writes(0.0)
        assert self.store.flush(TIMEOUT_S)
        self.cache.check_invariants()

    def look_around(self) -> None:
        """Learn what other runs have stored meanwhile."""
        self.store.look_around()
        self.settle()

    def restore(self, tokens: np.ndarray) -> int:
        """Return the deepest position that can be restored, its bytes checked; 0: none."""
        longer = np.append(tokens, 1).astype(np.int32)
        found = 0
        for state in self.cache.match(longer, 0.0).stored:
            try:
                self.cache.read_in(state.contents)
            except StoredStateLost:
                continue
            check_bytes(state, tokens)
            found = state.pos
            break
        self.cache.evict(0.0)  # what was read is held in memory from now on
        self.cache.check_invariants()
        return found

    def stored_logits(self) -> set[int]:
        """Return the blobs of logits, which are the same in the tree and on disk."""
        states = [held for _, node in self.cache.recent_nodes() for held in node.checkpoints]
        known = [state.logits_id for state in states if state.logits_id]
        assert set(known) == {blob.id for blob in self.store.load().blobs if blob.kind == "logits"}
        assert len(known) == len(set(known))
        return set(known)

    def close(self) -> None:
        assert self.cache.close_disk(TIMEOUT_S)


def prompt_end(tokens: np.ndarray, pos: int) -> PromptEnd | None:
    return PromptEnd(pos, logits_of(tokens[:pos])) if pos else None


def logits_of(tokens: np.ndarray) -> bytes:
    return payload(64, seed=int(tokens.sum()) % 2**32 + 1)


def check_bytes(state: StoredState, tokens: np.ndarray) -> None:
    for part in state.parts:
        assert part.segment.data is not None
        wanted = cells_of(tokens[: part.end], part.segment.start)
        assert bytes(part.segment.data)[: len(wanted)] == wanted
    if state.checkpoint is not None:
        assert state.checkpoint.data is not None
        assert bytes(state.checkpoint.data) == state_of(tokens[: state.pos])


def state_of(tokens: np.ndarray) -> bytes:
    return payload(500, seed=int(tokens.sum()) % 2**32)


def cells_of(tokens: np.ndarray, start: int) -> bytes:
    """Return bytes that depend on each token at its position."""
    positions = np.arange(start, len(tokens), dtype=np.int64)
    return (tokens[start:].astype(np.int64) * 1_000_003 + positions).tobytes()


@pytest.fixture(params=["full", "recurrent", "hybrid"])
def kind(request: pytest.FixtureRequest) -> MemoryKind:
    kind: MemoryKind = request.param
    return kind


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Runs to be closed at the end, if they are not closed by then."""
    opened: list[Run] = []
    yield opened
    for run in opened:
        run.close()


def test_a_later_run_goes_on_where_an_earlier_one_stopped(
    tmp_path: Path, kind: MemoryKind, runs: list[Run]
) -> None:
    first, tokens = Run(tmp_path, kind), history(300)
    first.compute(tokens[:200], "system_end")
    first.compute(tokens)
    first.save(tokens)
    first.close()

    second = Run(tmp_path, kind)
    runs.append(second)

    assert second.loaded.num_useless == 0
    assert second.cache.num_bytes == 0
    assert second.cache.known_until(tokens) == 300
    assert second.restore(tokens) == 300
    assert second.cache.num_bytes > 0


def test_a_branch_shares_what_it_has_in_common(
    tmp_path: Path, kind: MemoryKind, runs: list[Run]
) -> None:
    first, main = Run(tmp_path, kind), history(300)
    side = branch(main, 200, 50)
    first.compute(main[:200], "system_end")
    first.compute(main)
    first.compute(side)
    first.save(side)  # the main one was never asked for, but its cells are shared
    first.close()

    second = Run(tmp_path, kind)
    runs.append(second)
    assert second.loaded.num_useless == 0
    assert second.restore(side) == 250


def test_memory_lets_go_of_what_the_disk_has(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "hybrid", ram_bytes=4000)
    runs.append(run)
    histories = [history(200, seed) for seed in range(5)]
    for tokens in histories:
        run.compute(tokens)
        run.save(tokens)
    assert run.cache.num_bytes <= 4000
    for tokens in histories:
        assert run.restore(tokens) == 200
        assert run.cache.num_bytes <= 4000


def test_a_lost_state_is_a_miss_and_what_is_before_it_is_used(
    tmp_path: Path, runs: list[Run]
) -> None:
    first, tokens = Run(tmp_path), history(300)
    first.compute(tokens[:200], "system_end")
    first.compute(tokens)
    first.save(tokens)
    first.close()
    second = Run(tmp_path)
    runs.append(second)
    checkpoint = second.cache.match(np.append(tokens, 1), 0.0).stored[0].checkpoint
    assert checkpoint is not None
    damage(second, checkpoint.blob_id)

    assert second.restore(tokens) == 200
    assert second.cache.known_until(tokens) == 300


def test_a_lost_segment_takes_what_follows_it(tmp_path: Path, runs: list[Run]) -> None:
    first, tokens = Run(tmp_path), history(300)
    side = branch(tokens, 250, 50)
    first.compute(tokens[:200], "system_end")
    first.compute(tokens)
    first.compute(side)
    for each in (tokens, side):
        first.save(each)
    first.close()
    second = Run(tmp_path)
    runs.append(second)
    part = second.cache.match(np.append(side, 1), 0.0).stored[0].parts[1]
    assert part.start == 200
    damage(second, part.segment.blob_id)

    assert second.restore(side) == 200
    assert second.restore(tokens) == 200
    second.compute(tokens)
    second.save(tokens)
    assert second.restore(tokens) == 300


def test_a_full_disk_budget_makes_room_for_what_is_new(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "hybrid", budget_bytes=20_000)
    runs.append(run)
    histories = [history(200, seed) for seed in range(12)]
    for tokens in histories:
        run.compute(tokens)
        for _ in range(3):  # refused once, then written
            run.save(tokens)
        assert run.store.num_bytes <= 20_000
    run.close()
    runs.clear()
    again = Run(tmp_path, "hybrid", budget_bytes=20_000)
    runs.append(again)
    assert again.restore(histories[-1]) == 200


def test_what_was_used_last_in_an_earlier_run_stays_longest(
    tmp_path: Path, runs: list[Run]
) -> None:
    first = Run(tmp_path, "hybrid", budget_bytes=20_000)
    histories = [history(200, seed) for seed in range(4)]
    for tokens in histories:
        first.compute(tokens)
        first.save(tokens)
    assert first.restore(histories[0]) == 200
    first.close()
    second = Run(tmp_path, "hybrid", budget_bytes=20_000)
    runs.append(second)
    for seed in (4, 5):  # there is room for five
        second.compute(history(200, seed))
        for _ in range(2):
            second.save(history(200, seed))
    kept = [second.restore(tokens) == 200 for tokens in histories]
    assert kept[0]
    assert not kept[1]


def test_dropping_a_conversation_removes_its_files(tmp_path: Path, runs: list[Run]) -> None:
    run, tokens = Run(tmp_path), history(200)
    runs.append(run)
    run.compute(tokens)
    run.cache.write_history(tokens)
    run.cache.drop(tokens)  # while it is being written
    run.settle()
    run.settle()
    assert run.store.num_bytes == 0
    assert not [path for path in tmp_path.rglob("*") if path.parent.parent.name == "blobs"]


@pytest.mark.parametrize("seed", range(8))
def test_random_runs_restore_what_was_computed(tmp_path: Path, kind: MemoryKind, seed: int) -> None:
    """Conversations grow and branch over several runs, with little room in memory and on disk."""
    rng = random.Random(f"{kind} {seed}")
    histories = [history(rng.randint(40, 120), seed=number) for number in range(3)]
    budgets = {
        "ram_bytes": rng.choice([6_000, 1 << 20]),
        "budget_bytes": rng.choice([30_000, 1 << 20]),
    }
    for _ in range(4):
        run = Run(tmp_path, kind, **budgets)
        for _ in range(25):
            pick = rng.randrange(len(histories))
            tokens = histories[pick]
            action = rng.choice(["grow", "branch", "restore", "save", "settle", "drop"])
            if action == "grow":
                histories[pick] = np.append(tokens, history(rng.randint(1, 60), rng.randrange(9)))
                run.compute(histories[pick].astype(np.int32))
            elif action == "branch" and len(histories) < 12:
                histories.append(
                    branch(tokens, rng.randrange(1, len(tokens)), 30, rng.randrange(9))
                )
                run.compute(histories[-1])
            elif action == "restore":
                run.restore(tokens)
                assert run.cache.read_logits(tokens) in (None, logits_of(tokens))
            elif action == "save":
                run.cache.write_history(tokens, prompt_end(tokens, rng.choice([0, len(tokens)])))
            elif action == "settle":
                run.settle()
            elif rng.random() < 0.2:
                run.cache.drop(tokens)
            run.cache.check_invariants()
        run.settle()
        run.stored_logits()
        run.close()


def test_logits_are_known_again_as_long_as_their_state_is(tmp_path: Path, runs: list[Run]) -> None:
    first, tokens = Run(tmp_path), history(300)
    for end in (200, 300):
        first.compute(tokens[:end])
    first.save(tokens, num_prompt_tokens=200)
    first.close()
    second = Run(tmp_path)
    runs.append(second)
    assert second.loaded.num_useless == 0
    assert second.cache.read_logits(tokens[:200]) == logits_of(tokens[:200])
    assert second.cache.read_logits(tokens) is None
    assert second.cache.read_logits(branch(tokens, 199, 1)) is None
    second.cache.drop(tokens[:150])
    second.settle()
    assert second.stored_logits() == set()


def test_a_conversation_has_the_logits_of_its_last_prompt_only(
    tmp_path: Path, runs: list[Run]
) -> None:
    run, tokens = Run(tmp_path), history(300)
    runs.append(run)
    for end in (100, 200, 300):
        run.compute(tokens[:end])
        run.save(tokens[:end], num_prompt_tokens=end)
    assert len(run.stored_logits()) == 1
    assert run.cache.read_logits(tokens) == logits_of(tokens)
    assert run.cache.read_logits(tokens[:200]) is None


def test_damaged_logits_are_not_known(tmp_path: Path, runs: list[Run]) -> None:
    run, tokens = Run(tmp_path), history(200)
    runs.append(run)
    run.compute(tokens)
    run.save(tokens, num_prompt_tokens=200)
    (blob_id,) = run.stored_logits()
    damage(run, blob_id)
    assert run.cache.read_logits(tokens) is None
    assert run.restore(tokens) == 200
    run.settle()
    assert run.stored_logits() == set()


def test_logits_without_a_state_on_disk_are_not_written(tmp_path: Path, runs: list[Run]) -> None:
    run, tokens = Run(tmp_path, "full"), history(200)
    runs.append(run)
    run.compute(tokens)
    run.save(tokens, num_prompt_tokens=200)
    assert run.stored_logits() == set()


@pytest.mark.parametrize(
    ("change", "restored"),
    [
        ("UPDATE runs SET parent = 99 WHERE parent > 0", (200, 250)),
        ("UPDATE runs SET start = 5000 WHERE parent > 0", (200, 250)),
        ("DELETE FROM runs WHERE parent = 0", (0, 0)),
        ('UPDATE blobs SET "end" = 5000 WHERE kind = 2', (0, 0)),
        ("UPDATE pins SET pos = 5000", (300, 250)),
    ],
)
def test_what_the_index_contradicts_itself_about_is_a_miss(
    tmp_path: Path, runs: list[Run], change: str, restored: tuple[int, int]
) -> None:
    first, tokens, other = Run(tmp_path), history(300), history(250, seed=5)
    for each in (tokens[:200], tokens, other):
        first.compute(each)
        first.save(each)
    first.cache.pin_lastingly(tokens, "client")
    first.close()
    with contextlib.closing(sqlite3.connect(first.store.folder / "index.sqlite")) as connection:
        connection.execute(change)
        connection.commit()
    second = Run(tmp_path)
    runs.append(second)
    assert (second.restore(tokens), second.restore(other)) == restored


def damage(run: Run, blob_id: int) -> None:
    """Turn a byte of a file around."""
    (path,) = run.store.folder.rglob(f"{blob_id:016x}")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_states_in_the_middle_are_kept_as_far_apart_as_they_are_large(tmp_path: Path) -> None:
    run, tokens = Run(tmp_path), history(1000)
    for end in range(100, 1001, 20):
        run.compute(tokens[:end], "chunk")
    chosen = [held.pos for held in choose_saved(run.cache.find_path(tokens))]
    run.close()
    # 500 bytes a state, 8 a token: 31 tokens of which are half a state.
    assert chosen[:4] == [100, 140, 180, 220]
    assert chosen[-2:] == [980, 1000]
    assert len(chosen) < 30


def test_without_cells_states_are_kept_some_thousand_tokens_apart(tmp_path: Path) -> None:
    run, tokens = Run(tmp_path, "recurrent"), history(9000)
    for end in range(500, 9001, 500):
        run.compute(tokens[:end], "chunk")
    chosen = [held.pos for held in choose_saved(run.cache.find_path(tokens))]
    run.close()
    assert chosen == [2500, 5000, 7500, 8500, 9000]


def test_the_states_around_the_last_image_are_kept(tmp_path: Path) -> None:
    run, tokens = Run(tmp_path, "recurrent"), history(2000)
    places = {300: "media", 400: "media", 500: "media", 600: "media", 700: "chunk", 800: "chunk"}
    for end, kind in {**places, 900: "chunk"}.items():
        run.compute(tokens[:end], kind)
    chosen = [held.pos for held in choose_saved(run.cache.find_path(tokens))]
    run.close()
    assert chosen == [500, 600, 800, 900]


@pytest.fixture
def pair(tmp_path: Path, kind: MemoryKind) -> Iterator[tuple[Run, Run]]:
    """Two runs at the same time on one folder."""
    both = Run(tmp_path, kind), Run(tmp_path, kind)
    yield both
    for run in both:
        run.close()


def test_what_another_stores_is_restored_while_both_run(pair: tuple[Run, Run]) -> None:
    ours, theirs = pair
    tokens = history(300)
    side = branch(tokens, 200, 50)
    theirs.compute(tokens[:200], "system_end")
    theirs.compute(tokens)
    theirs.save(tokens, num_prompt_tokens=300)
    assert ours.cache.known_until(tokens) == 0
    ours.look_around()
    assert ours.cache.num_bytes == 0
    assert ours.restore(tokens) == 300
    theirs.compute(side)
    theirs.save(side)
    ours.look_around()
    assert ours.restore(side) == 250
    assert ours.restore(tokens) == 300
    if ours.cache.traits.has_states:
        assert ours.cache.read_logits(tokens) == logits_of(tokens)


def test_what_both_have_is_written_once(pair: tuple[Run, Run]) -> None:
    ours, theirs = pair
    tokens = history(300)
    for run in pair:
        run.compute(tokens)
    theirs.save(tokens)
    ours.look_around()
    ours.save(tokens)
    status = ours.store.statistics().writer
    assert (status.num_written, status.num_known) == (0, 0)
    assert theirs.restore(tokens) == ours.restore(tokens) == 300


def test_what_goes_on_from_cells_in_memory_waits_until_those_are_written(
    tmp_path: Path, runs: list[Run]
) -> None:
    ours, theirs, tokens = Run(tmp_path), Run(tmp_path), history(300)
    runs += [ours, theirs]
    ours.compute(tokens[:120])
    for end in (100, 300):
        theirs.compute(tokens[:end])
    theirs.save(tokens)
    ours.look_around()
    assert ours.restore(tokens) == 120
    ours.save(tokens[:120])
    ours.settle()
    assert ours.restore(tokens) == 300


def test_what_another_removed_is_a_miss(pair: tuple[Run, Run]) -> None:
    ours, theirs = pair
    tokens = history(300)
    theirs.compute(tokens)
    theirs.save(tokens)
    ours.look_around()
    theirs.cache.drop(tokens)
    theirs.settle()
    ours.look_around()
    assert ours.store.num_bytes == 0
    assert ours.restore(tokens) == 0


def test_a_store_looks_by_itself(tmp_path: Path, runs: list[Run]) -> None:
    ours, theirs, tokens = Run(tmp_path, watch_s=0.01), Run(tmp_path), history(300)
    runs += [ours, theirs]
    theirs.compute(tokens)
    theirs.save(tokens)
    deadline_s = time.monotonic() + TIMEOUT_S
    while ours.restore(tokens) != 300:
        assert time.monotonic() < deadline_s, "it was never looked"
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_side_by_side_restore_what_was_computed(
    tmp_path: Path, kind: MemoryKind, seed: int
) -> None:
    rng = random.Random(f"{kind} {seed}")
    histories = [history(rng.randint(40, 120), seed=number) for number in range(3)]
    budgets = {
        "ram_bytes": rng.choice([6_000, 1 << 20]),
        "budget_bytes": rng.choice([30_000, 1 << 20]),
    }
    both = Run(tmp_path, kind, **budgets), Run(tmp_path, kind, **budgets)
    for _ in range(80):
        run, pick = rng.choice(both), rng.randrange(len(histories))
        tokens = histories[pick]
        action = rng.choice(["grow", "branch", "compute", "restore", "save", "look", "drop"])
        if action == "grow":
            histories[pick] = np.append(tokens, history(rng.randint(1, 60), rng.randrange(9)))
            run.compute(histories[pick].astype(np.int32))
        elif action == "branch" and len(histories) < 12:
            histories.append(branch(tokens, rng.randrange(1, len(tokens)), 30, rng.randrange(9)))
            run.compute(histories[-1])
        elif action == "compute":
            run.compute(tokens[: rng.randint(1, len(tokens))])
        elif action == "restore":
            run.restore(tokens)
            assert run.cache.read_logits(tokens) in (None, logits_of(tokens))
        elif action == "save":
            run.cache.write_history(tokens, prompt_end(tokens, rng.choice([0, len(tokens)])))
        elif action == "look":
            run.look_around()
        elif action == "drop" and rng.random() < 0.1:
            run.cache.drop(tokens)
        run.cache.check_invariants()
    for run in both:
        run.look_around()
        run.close()

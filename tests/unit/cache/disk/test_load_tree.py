"""What lies on disk is gathered by conversation, each history once, parents first."""

from __future__ import annotations

import numpy as np
from tests.disk_cache import branch, history

from milepost.cache import CacheTraits
from milepost.cache.disk.format import encode_tokens
from milepost.cache.disk.load_tree import choose_tips, gather_blobs, load_tree
from milepost.cache.disk.stored_forest import StoredBlob, StoredForest, StoredRuns
from milepost.cache.invariants import check_tree
from milepost.cache.stored_states import StoredStates
from milepost.cache.tree import Tree

TOKENS = history(90)
BESIDE = branch(history(60), 20, 30)  # leaves TOKENS at 20
RUNS = StoredRuns.of_rows(
    [
        (1, 0, 0, encode_tokens(TOKENS[:40])),
        (2, 1, 40, encode_tokens(TOKENS[40:])),
        (3, 1, 20, encode_tokens(BESIDE[20:])),
    ]
)


def cells(blob_id: int, run: int, start: int, end: int) -> StoredBlob:
    return StoredBlob(blob_id, run, "segment", "", start, end, 100, b"", b"", 0.0, 0)


def state(blob_id: int, run: int, pos: int, last_used_s: float = 0.0) -> StoredBlob:
    return StoredBlob(blob_id, run, "checkpoint", "chunk", 0, pos, 10, b"", b"", last_used_s, 0)


def load(*blobs: StoredBlob, runs: StoredRuns = RUNS) -> tuple[Tree, list[int]]:
    stored = StoredStates(CacheTraits.of_kind("hybrid"))
    useless = load_tree(StoredForest(runs, list(blobs), []), stored, 0.0)
    check_tree(stored.tree, stored.traits)
    return stored.tree, useless


def test_a_run_that_another_goes_on_from_is_no_tip() -> None:
    tips = choose_tips(RUNS, {1: 40, 2: 90})
    assert [(tip.run, tip.passed) for tip in tips] == [(2, ((1, 40),))]


def test_a_run_is_a_tip_when_more_of_it_is_stored_than_a_branch_needs() -> None:
    assert [tip.run for tip in choose_tips(RUNS, {1: 40, 3: 50})] == [1, 3]
    assert [tip.run for tip in choose_tips(RUNS, {1: 20, 3: 50})] == [3]


def test_each_blob_belongs_to_the_first_conversation_that_passes_it() -> None:
    blobs = [state(5, 3, 50), cells(4, 3, 20, 50), state(3, 1, 20), cells(2, 2, 40, 90)]
    forest = StoredForest(RUNS, [*blobs, cells(1, 1, 0, 40)], [])
    found = [(run, sorted(blob.id for blob in blobs)) for run, blobs in gather_blobs(forest)]
    assert found == [(2, [1, 2, 3]), (3, [4, 5])]


def test_what_a_branch_needs_of_its_parent_is_taken_and_the_rest_is_left() -> None:
    runs = StoredRuns.of_rows([(1, 0, 0, encode_tokens(TOKENS)), (2, 1, 20, RUNS.encoded[2])])
    tree, useless = load(
        cells(1, 1, 0, 40), cells(2, 1, 40, 90), state(3, 1, 90), cells(4, 2, 20, 50), runs=runs
    )
    assert useless == []
    assert tree.find_path(TOKENS).saved_until == 90
    assert tree.find_path(BESIDE).saved_until == 50


def test_what_stands_behind_a_gap_is_useless() -> None:
    tree, useless = load(cells(1, 1, 0, 40), cells(2, 2, 50, 90), state(3, 2, 90))
    assert useless == [2]
    assert tree.find_path(TOKENS).saved_until == 40


def test_conversations_are_older_than_all_to_come_in_the_order_of_their_use() -> None:
    tree, _ = load(state(1, 2, 90, last_used_s=7.0), state(2, 3, 50, last_used_s=9.0))
    old, new = (tree.find_path(tokens).checkpoints[0].last_used for tokens in (TOKENS, BESIDE))
    assert old < new < (0, 0.0)
    shared = tree.find_path(np.concatenate((TOKENS[:20], [-1]))).nodes[0]
    assert shared.last_used == new

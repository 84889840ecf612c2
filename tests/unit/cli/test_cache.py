"""`milepost cache`, beside a store that is open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.disk_cache import (
    FINGERPRINT,
    TIMEOUT_S,
    ManualClock,
    blob_paths,
    finish,
    history,
    open_store,
    payload,
    refresh,
)

from milepost.cache.disk.store import DiskStore
from milepost.cli.main import program, run
from milepost.config.cache_folder import default_cache_folder

OLD_DAYS = 100


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    """A store with a conversation of two segments and a state, and an older one of one segment."""
    clock = ManualClock(time.time() - OLD_DAYS * 86400)
    store = open_store(tmp_path, clock.both())
    store.put_segment(history(40, seed=1), 0, payload(1000))
    finish(store)
    clock.now_s += OLD_DAYS * 86400
    store.put_segment(history(50), 0, payload(2000))
    store.put_segment(history(80), 50, payload(3000))
    store.put_checkpoint(history(80), "prompt_end", payload(500))
    finish(store)
    yield store
    store.close(TIMEOUT_S)


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return `call(*arguments, status=0)`, which gives the JSON or text that is printed."""

    def call(*arguments: str, status: int = 0) -> Any:
        assert run(["cache", *arguments, "--cache-dir", str(tmp_path)]) == status
        printed = capsys.readouterr()
        return json.loads(printed.out) if "--json" in arguments else printed.out + printed.err

    return call


def test_ls_shows_folders(store: DiskStore, call: Callable[..., Any]) -> None:
    (folder,) = call("ls", "--json")
    assert folder["name"] == FINGERPRINT.folder_name
    assert (folder["num_segments"], folder["num_checkpoints"]) == (3, 1)
    assert folder["num_bytes"] == sum(path.stat().st_size for path in blob_paths(store))
    assert folder["fingerprint"]["type_k"] == "f16"
    text = call("ls")
    assert FINGERPRINT.folder_name[:12] in text
    assert "hybrid, KV f16" in text


def test_show_lists_what_is_held(store: DiskStore, call: Callable[..., Any]) -> None:
    blobs = call("show", FINGERPRINT.folder_name[:6], "--json")
    assert [(blob["kind"], blob["end"]) for blob in blobs][-1] == ("segment", 40)
    text = call("show", FINGERPRINT.folder_name)
    assert "50-80" in text
    assert "prompt_end" in text
    assert "4 of 4 are shown" in text


def test_an_unknown_folder_is_a_sentence(store: DiskStore, call: Callable[..., Any]) -> None:
    assert "0 folders in" in call("show", "ffff", status=1)


def test_verify_finds_a_flipped_bit_and_removes_it_when_told(
    store: DiskStore, call: Callable[..., Any]
) -> None:
    assert call("verify", "--json") == {"whole": 4, "damaged": []}
    path = blob_paths(store)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "3 are whole, 1 are damaged" in call("verify", status=1)
    assert path.exists()
    (damaged,) = call("verify", "--remove", "--json", status=1)["damaged"]
    assert damaged["id"] == path.name
    assert call("verify", "--json") == {"whole": 3, "damaged": []}
    assert len(refresh(store).removed) == 1


def test_prune_removes_what_was_used_longest_ago(
    store: DiskStore, call: Callable[..., Any]
) -> None:
    size = str((store.num_bytes - 500) / (1 << 30))
    assert call("prune", "--max-size", size, "--dry-run", "--json")["removed"] == 1
    assert call("verify", "--json")["whole"] == 4
    assert call("prune", "--max-size", size, "--json")["removed"] == 1
    assert sorted(blob.end for blob in store.load().blobs) == [50, 80, 80]
    size = str((store.num_bytes - 500) / (1 << 30))
    call("prune", FINGERPRINT.folder_name, "--max-size", size)
    assert 50 in {blob.end for blob in store.load().blobs}  # the deeper go first


def test_prune_by_age(store: DiskStore, call: Callable[..., Any]) -> None:
    assert "give --max-size or --older-than" in call("prune", status=2)
    assert call("prune", "--older-than", str(OLD_DAYS + 1), "--json")["removed"] == 0
    assert call("prune", "--older-than", str(OLD_DAYS - 1), "--json")["removed"] == 1
    assert sorted(blob.end for blob in store.load().blobs) == [50, 80, 80]


def test_purge_asks_and_removes_all(store: DiskStore, call: Callable[..., Any]) -> None:
    arguments = ["cache", "purge", "--cache-dir", str(store.folder.parent)]
    refused = CliRunner().invoke(program, arguments, input="n\n")
    assert "Remove" in refused.output
    assert refused.exit_code == 1
    assert len(blob_paths(store)) == 4
    assert call("purge", "--yes", "--json")["removed"] == 4
    assert blob_paths(store) == []
    store.put_segment(history(9), 0, payload(10))  # the server goes on
    assert [completion.refusal for completion in finish(store)] == [None]


def test_stats_add_up(store: DiskStore, call: Callable[..., Any]) -> None:
    totals = call("stats", "--json")
    assert (totals["folders"], totals["segments"], totals["checkpoints"]) == (1, 3, 1)
    assert totals["bytes"] == store.num_bytes
    assert "volume free" in call("stats")


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["stats"], ["purge", "--yes"]])
def test_a_missing_cache_folder_is_an_empty_one(
    tmp_path: Path, call: Callable[..., Any], command: list[str]
) -> None:
    call(*command)
    assert list(tmp_path.iterdir()) == []


def test_a_newer_index_is_listed_with_its_problem(
    store: DiskStore, call: Callable[..., Any]
) -> None:
    import sqlite3

    connection = sqlite3.connect(store.folder / "index.sqlite")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    assert "has version 7" in call("ls", "--json")[0]["problem"]


def test_the_default_folder_is_the_platforms() -> None:
    home = Path("/home/me")
    assert default_cache_folder({}, "linux", home) == home / ".cache/milepost"
    named = default_cache_folder({"XDG_CACHE_HOME": "/fast"}, "linux", home)
    assert named == Path("/fast/milepost")
    relative = default_cache_folder({"XDG_CACHE_HOME": "here"}, "linux", home)
    assert relative == home / ".cache/milepost"
    assert default_cache_folder({}, "darwin", home) == home / "Library/Caches/milepost"
    assert default_cache_folder({}, "win32", home) == home / "AppData/Local/milepost/cache"

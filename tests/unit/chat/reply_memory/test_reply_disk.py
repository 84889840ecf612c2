"""Replies outlive the process, and a file that is damaged costs nothing but them."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.chat.reply_memory.test_reply_store import reply

from milepost.chat.reply_memory.reply_disk import FILE_NAME, ReplyDisk
from milepost.chat.reply_memory.reply_store import MAX_BYTES, KeptReply, ReplyStore

ONE = reply("one", b"1", reasoning="why é \ud800", ids=("é", ""), tokens=array("i", [1, 70_000, 2]))
TWO = reply("two", b"2")


@contextlib.contextmanager
def running(folder: Path, max_bytes: int = MAX_BYTES) -> Iterator[tuple[ReplyStore, ReplyDisk]]:
    """Run with a folder for a while."""
    store = ReplyStore()
    disk = ReplyDisk(store, max_bytes)
    disk.open(folder)
    yield store, disk
    disk.close()


def read(folder: Path) -> tuple[KeptReply, ...]:
    """Return what a new run finds."""
    with running(folder) as (store, _):
        return store.replies()


def write(folder: Path, *replies: KeptReply) -> None:
    with running(folder) as (store, _):
        for each in replies:
            store.add_reply(each)


def test_replies_are_found_by_the_next_run(tmp_path: Path) -> None:
    write(tmp_path, ONE, TWO)
    assert read(tmp_path) == (ONE, TWO)
    write(tmp_path, ONE)
    assert read(tmp_path) == (ONE, TWO)


def test_a_running_server_learns_the_replies_of_another(tmp_path: Path) -> None:
    ours = ReplyStore()
    disk = ReplyDisk(ours, watch_s=0.01)
    disk.open(tmp_path)
    ours.add_reply(ONE)
    with running(tmp_path) as (theirs, _):
        theirs.add_reply(TWO)
        wait_until(lambda: TWO in ours.replies())
        ours.forget_all()
        theirs.add_reply(reply("three"))
        wait_until(lambda: len(ours) == 1)
    disk.close()
    assert ours.replies() == (reply("three"),)
    assert {each.meaning for each in read(tmp_path)} == {
        each.meaning for each in (ONE, TWO, reply("three"))
    }


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    with running(tmp_path) as (store, _):
        store.add_reply(ONE)
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {0o600}


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    replies = [reply(f"number {i}") for i in range(9)]
    with running(tmp_path, max_bytes=3 * replies[0].num_bytes) as (store, _):
        for each in replies:
            store.add_reply(each)
    assert read(tmp_path) == tuple(replies[-3:])


@pytest.mark.parametrize(("history_keys", "left"), [((b"1",), (TWO,)), (None, ())])
def test_what_is_to_be_forgotten_is_nowhere_in_the_file(
    tmp_path: Path, history_keys: tuple[bytes, ...] | None, left: tuple[KeptReply, ...]
) -> None:
    secret = reply("secret", b"1", reasoning="the very secret thought")
    write(tmp_path, secret, TWO)
    with running(tmp_path) as (_, disk):
        disk.forget_histories(history_keys)
    assert read(tmp_path) == left
    assert not any(b"very secret" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_purge_by_somebody_else_is_survived(tmp_path: Path) -> None:
    with running(tmp_path) as (store, _):
        store.add_reply(ONE)
        for suffix in ("-wal", "-shm", ""):  # the order of `milepost cache purge`
            (tmp_path / f"{FILE_NAME}{suffix}").unlink()
        store.add_reply(TWO)
    assert TWO in read(tmp_path)


@pytest.mark.parametrize("damage", ["zeros", "short", "text"])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, *(reply(f"number {i}", reasoning="why" * 500) for i in range(50)))
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    broken = {"zeros": bytes(len(data)), "short": data[: len(data) // 2], "text": b"a" * 5000}
    path.write_bytes(broken[damage])

    assert read(tmp_path) == ()
    assert "damaged" in caplog.text
    write(tmp_path, TWO)
    assert read(tmp_path) == (TWO,)


def test_a_reply_with_a_flipped_bit_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, ONE, TWO)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE replies SET tokens = x'01000000' WHERE place = ?", (b"1",))
    assert read(tmp_path) == (TWO,)


def test_a_newer_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, ONE)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA user_version = 3")
    before = (tmp_path / FILE_NAME).read_bytes()
    with running(tmp_path) as (store, _):
        store.add_reply(TWO)
        assert len(store) == 1
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert "version 3" in caplog.text


def test_a_file_without_ids_begins_anew(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE replies (id INTEGER PRIMARY KEY, tokens BLOB)")
        connection.execute("PRAGMA user_version = 1")
    write(tmp_path, ONE)
    assert read(tmp_path) == (ONE,)


def test_a_folder_that_is_not_there_costs_the_disk_only(tmp_path: Path) -> None:
    with running(tmp_path / "none") as (store, _):
        store.add_reply(ONE)
    assert len(store) == 1


def test_two_servers_share_a_file(tmp_path: Path) -> None:
    with running(tmp_path) as (one, _), running(tmp_path) as (other, _):
        one.add_reply(ONE)
        other.add_reply(TWO)
    assert set(map(hash_of, read(tmp_path))) == {hash_of(ONE), hash_of(TWO)}


def hash_of(kept: KeptReply) -> bytes:
    return kept.meaning

"""SQLite files are ours alone, and one that is damaged is begun anew."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from milepost.errors import DiskCacheUnusable
from milepost.sqlite_files import (
    SqliteFormat,
    check_sound,
    is_damage,
    open_anew_if_damaged,
    open_sqlite,
    read_inode,
    remove_set_aside,
    remove_sqlite,
    set_aside,
    transaction,
)

NUMBERS = SqliteFormat(
    application_id=7,
    version=3,
    schema="DROP TABLE IF EXISTS numbers; CREATE TABLE numbers (number INTEGER);",
    oldest_readable=2,
    probe="SELECT 1 FROM numbers LIMIT 1",
    busy_timeout_s=5.0,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "numbers.sqlite"


def write(path: Path, *commands: str) -> None:
    with contextlib.closing(open_sqlite(path, NUMBERS)) as connection:
        for command in commands:
            connection.execute(command)


def read(path: Path) -> list[int]:
    with contextlib.closing(open_sqlite(path, NUMBERS)) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM numbers")]


def test_a_new_file_is_for_its_owner_alone(path: Path) -> None:
    write(path, "INSERT INTO numbers VALUES (1)")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(path) == [1]


@pytest.mark.parametrize(("version", "kept"), [(2, [1]), (1, [])])
def test_what_an_older_version_wrote_is_kept_where_it_can_be_read(
    path: Path, version: int, kept: list[int]
) -> None:
    write(path, "INSERT INTO numbers VALUES (1)", f"PRAGMA user_version = {version}")
    assert read(path) == kept


def test_a_newer_version_is_refused(path: Path) -> None:
    write(path, "PRAGMA user_version = 4")
    with pytest.raises(DiskCacheUnusable, match=r"has version 4, and this program knows 3"):
        open_sqlite(path, NUMBERS)


def test_a_damaged_file_is_set_aside_and_a_busy_one_is_not(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)
    connection = open_anew_if_damaged(path, lambda path: open_sqlite(path, NUMBERS), set_aside)
    connection.close()
    assert read(path) == []
    assert path.with_name("numbers.sqlite.damaged").exists()
    remove_set_aside(path)
    remove_sqlite(path)
    assert not list(path.parent.iterdir())

    def be_busy(path: Path) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_anew_if_damaged(path, be_busy, set_aside)


def test_contents_that_contradict_themselves_are_damage(path: Path) -> None:
    write(path, "PRAGMA writable_schema = ON", "UPDATE sqlite_schema SET rootpage = 99")
    with (
        contextlib.closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.DatabaseError, match="contradict") as caught,
    ):
        check_sound(connection)
    assert is_damage(caught.value)


def test_a_transaction_is_whole_or_nothing(path: Path) -> None:
    connection = open_sqlite(path, NUMBERS)
    rows = [(1,), ("two", "too many")]
    with pytest.raises(sqlite3.ProgrammingError), transaction(connection):
        connection.executemany("INSERT INTO numbers VALUES (?)", rows)
    with transaction(connection):
        connection.execute("INSERT INTO numbers VALUES (2)")
    connection.close()
    assert read(path) == [2]
    assert read_inode(path) == path.stat().st_ino
    assert read_inode(path.with_name("none")) == 0

"""The blob files of one fingerprint: written once, never changed, named after their random id.

    blobs/
        3f/3f09…c2        a file; the first two digits of its name are its folder
        3f/3f09…c2.tmp    the same while it is being written

A writer holds a lock on its file from the first byte until its row is in the index, so that nobody
takes it for an orphan, however slow the disk or wrong the clock is. The system drops the lock of a
process that dies.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

from milepost.cache.disk.format import (
    HEADER_BYTES,
    TOKEN_BYTES,
    BlobHeader,
    history_checksum,
    is_newer_format,
    parse_header,
)
from milepost.errors import StoredStateLost

try:
    import fcntl
except ImportError:  # where the system itself refuses to delete a file that is open
    fcntl = None  # type: ignore[assignment]

FOLDER_MODE = 0o700  # what is stored equals the conversation
FILE_MODE = 0o600
TEMP_SUFFIX = ".tmp"
WRITE_BYTES = 4 << 20  # at once: between two of them other threads get a turn

# Told after each step of a write, in this order; tests end the process there.
OnStep = Callable[[str], None]
STEPS = ("created", "begun", "written", "synced", "renamed", "placed", "row_added", "committed")


_NAME = re.compile(rf"[0-9a-f]{{16}}(?:{re.escape(TEMP_SUFFIX)})?")


class FoundFile(NamedTuple):
    """A file in the folder, whoever made it."""

    folder: str
    name: str
    id: int  # the blob that it is, or was to become
    is_temporary: bool  # it was not finished

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.folder, self.name)


class Differences(NamedTuple):
    """What an index and a folder do not agree about."""

    missing: list[int]  # blobs without a file
    strangers: list[FoundFile]  # without a blob, or not finished


class BlobFiles:
    """Writes, finds and removes the files below one folder."""

    def __init__(self, folder: Path, on_step: OnStep) -> None:
        self.folder = folder
        self.on_step = on_step

    def path_of(self, blob_id: int) -> Path:
        """Return where a blob is, or would be."""
        name = _name_of(blob_id)
        return self.folder / name[:2] / name

    @contextlib.contextmanager
    def writing(self, blob_id: int, pieces: list[bytes | memoryview]) -> Iterator[None]:
        """Write a file for good, and hold it while the caller adds its row.

        Nothing is left of it when either fails.

        Raises:
            OSError: it could not be written.
        """
        path = self.path_of(blob_id)
        temporary = path.with_name(path.name + TEMP_SUFFIX)
        make_folder(path.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        try:
            _try_lock(descriptor)
            self.on_step("created")
            self._write(descriptor, pieces)
            temporary.rename(path)
            self.on_step("renamed")
            sync_folder(path.parent)
            self.on_step("placed")
            yield
        except BaseException:
            temporary.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def remove(self, blob_id: int) -> None:
        """Delete a file; one that is gone already, or no file, is no failure."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            self.path_of(blob_id).unlink()

    def find_all(self) -> list[FoundFile]:
        """Return what lies in the folder and has a name of ours."""
        return self.compare(set()).strangers

    def compare(self, ids: Set[int]) -> Differences:
        """Return how the files differ from the blobs that are known.

        By their names, of which there are many thousand at every start.
        """
        known = {_name_of(blob_id): blob_id for blob_id in ids}
        found: set[str] = set()
        strangers: list[FoundFile] = []
        for folder in _list_names(str(self.folder)):
            path = os.path.join(self.folder, folder)
            names = _list_names(path)
            found.update(names)
            strangers += [
                FoundFile(path, name, int(name[:16], 16), len(name) > 16)
                for name in names
                if name not in known and _NAME.fullmatch(name)
            ]
        absent = [known[name] for name in known.keys() - found]
        missing = [blob_id for blob_id in absent if not self.path_of(blob_id).exists()]
        return Differences(missing, strangers)

    def _write(self, descriptor: int, pieces: list[bytes | memoryview]) -> None:
        for index, piece in enumerate(pieces):
            _write_all(descriptor, memoryview(piece).cast("B"))
            if index == 0:
                self.on_step("begun")
        self.on_step("written")
        os.fsync(descriptor)
        self.on_step("synced")


def read_front(path: Path) -> tuple[BlobHeader, bytes]:
    """Return the header of a whole file and its tokens, checked; the payload is not read.

    Raises:
        StoredStateLost: it is damaged or cut off.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = parse_header(file.read(HEADER_BYTES))
        tokens = file.read(TOKEN_BYTES * header.end)
        size = os.fstat(file.fileno()).st_size
    if size != header.file_bytes:
        raise StoredStateLost(f"it has {size} bytes instead of {header.file_bytes}")
    if history_checksum(tokens) != header.history:
        raise StoredStateLost("its tokens are damaged")
    return header, tokens


def is_of_newer_program(path: Path) -> bool:
    """Return whether a file has a format after ours; such a one is left alone."""
    with path.open("rb") as file:
        return is_newer_format(file.read(HEADER_BYTES))


def is_being_written(path: Path) -> bool:
    """Return whether a living process holds the file."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, for the owner alone."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlive a loss of power, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, made if need be, against all who do the same."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name_of(blob_id: int) -> str:
    return f"{blob_id:016x}"


def _write_all(descriptor: int, data: memoryview) -> None:
    for start in range(0, data.nbytes, WRITE_BYTES):
        rest = data[start : start + WRITE_BYTES]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _try_lock(descriptor: int) -> bool:
    """Take a lock unless another has it; a file system without locks gives it to everybody."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _list_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []

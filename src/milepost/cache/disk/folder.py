"""The folder of one fingerprint: making it, opening its index, and putting right what a crash left.

    <root>/<fingerprint>/
        fingerprint.json    what the name stands for
        lock                held while the folder is opened
        index.sqlite        and SQLite's own files beside it
        index.sqlite.damaged
        blobs/
        media/              what a projector made of images and audio, if one was loaded

Whatever a crash leaves, a whole blob is kept: it says itself what it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from milepost.cache.disk.blob_files import (
    FILE_MODE,
    FOLDER_MODE,
    BlobFiles,
    FoundFile,
    OnStep,
    is_being_written,
    is_of_newer_program,
    locked,
    make_folder,
    read_front,
)
from milepost.cache.disk.embedding_files import MEDIA_FOLDER, clear_embeddings
from milepost.cache.disk.fingerprint import FINGERPRINT_FILE, Fingerprint
from milepost.cache.disk.format import parse_tokens
from milepost.cache.disk.index import Index
from milepost.errors import DiskCacheUnusable, StoredStateLost
from milepost.sqlite_files import (
    is_damage,
    open_anew_if_damaged,
    remove_set_aside,
    remove_sqlite,
    set_aside,
)

logger = logging.getLogger(__name__)

INDEX_FILE = "index.sqlite"
LOCK_FILE = "lock"
REPLIES_FILE = "replies.sqlite"  # of the front end, which makes a new one when it is gone
BLOB_FOLDER = "blobs"
# A file that no one holds and no row names may belong to a writer on a file system without locks.
MIN_ORPHAN_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """Where the states of one fingerprint are."""

    path: Path
    key: bytes  # of the fingerprint
    description: str  # of the fingerprint
    files: BlobFiles

    @classmethod
    def of_fingerprint(cls, root: Path, fingerprint: Fingerprint, on_step: OnStep) -> DiskFolder:
        """Return the folder of a fingerprint; nothing is made."""
        path = root / fingerprint.folder_name
        files = BlobFiles(path / BLOB_FOLDER, on_step)
        return cls(path, fingerprint.key, fingerprint.encode_json(), files)

    def open_index(self, now_s: float) -> Index:
        """Make what is missing, put right what a crash left, and return the index.

        A damaged index is moved aside and made again from the blob files.

        Raises:
            DiskCacheUnusable: the folder cannot be read or written, or is a newer program's.
        """
        try:
            self._make()
            with locked(self.path / LOCK_FILE):
                index = open_anew_if_damaged(self.path / INDEX_FILE, Index.open, set_aside)
                reconcile(index, self, now_s)
            return index
        except (OSError, sqlite3.Error) as error:
            raise DiskCacheUnusable(
                f"the folder {self.path} cannot be used for the disk cache ({error}); make it "
                "writable, make room, or choose another with --cache-dir"
            ) from error

    def repair_index(self, now_s: float) -> Index:
        """Return the index after an error that says it is damaged; made again if that is so.

        Raises:
            DiskCacheUnusable: as `open_index`.
        """
        with contextlib.suppress(OSError), locked(self.path / LOCK_FILE):
            if self._is_damaged():
                set_aside(self.path / INDEX_FILE)
        return self.open_index(now_s)

    def remove_contents(self, index: Index) -> None:
        """Remove every state, token and embedding, whoever stored them.

        The count of written bytes stays.
        """
        for found in self.files.find_all():
            with contextlib.suppress(FileNotFoundError):
                if not (found.is_temporary and is_being_written(found.path)):
                    found.path.unlink()
        with index.transaction():
            index.remove_everything()
        index.vacuum()
        remove_set_aside(self.path / INDEX_FILE)
        remove_sqlite(self.path / REPLIES_FILE)
        clear_embeddings(self.path / MEDIA_FOLDER)

    def _make(self) -> None:
        make_folder(self.path)
        self.path.chmod(FOLDER_MODE)
        make_folder(self.files.folder)
        path = self.path / FINGERPRINT_FILE
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.touch(FILE_MODE)
            temporary.write_text(self.description, encoding="utf-8")
            temporary.replace(path)
        if path.read_text(encoding="utf-8") != self.description:
            raise DiskCacheUnusable(
                f"{path} describes another model or other settings than the name of its folder "
                "says; remove that folder, or choose another with --cache-dir"
            )

    def _is_damaged(self) -> bool:
        try:
            index = Index.open(self.path / INDEX_FILE)
        except sqlite3.Error as error:
            return is_damage(error)
        try:
            return not index.is_sound()
        finally:
            index.close()


def reconcile(index: Index, folder: DiskFolder, now_s: float) -> None:
    """Let rows and files agree: rows without files go, whole files without rows get one.

    What nobody can use is deleted when it is old enough and no living process holds it.
    """
    if index.has_damaged_rows():
        logger.warning("rows of the index in %s are damaged, and made again", folder.path)
        with index.transaction():
            index.remove_damaged_rows()
    missing, strangers = folder.files.compare(index.blob_ids())
    if missing or strangers:
        known = index.blob_ids()  # what was finished meanwhile has its row
        strangers = [file for file in strangers if file.is_temporary or file.id not in known]
        with index.transaction():
            index.remove_blobs(missing)
            orphans = [file for file in strangers if not _adopt(index, folder, file)]
        _delete_old(orphans, now_s)


def _adopt(index: Index, folder: DiskFolder, file: FoundFile) -> bool:
    """Make a row for a whole file that has none; return whether it is to be kept."""
    if file.is_temporary:
        return False
    try:
        if is_being_written(file.path) or is_of_newer_program(file.path):
            return True
        header, tokens = read_front(file.path)
        if header.id != file.id or header.fingerprint != folder.key:
            return False
        index.add_blob(header, index.add_run(parse_tokens(tokens)), header.written_s)
    except (StoredStateLost, FileNotFoundError):
        return False
    except sqlite3.IntegrityError:  # the same is stored in another file
        return False
    except OSError:  # not ours to read now
        return True
    return True


def _delete_old(files: Iterable[FoundFile], now_s: float) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            is_old = now_s - file.path.stat().st_mtime > MIN_ORPHAN_AGE_S
            if is_old and not is_being_written(file.path):
                file.path.unlink()

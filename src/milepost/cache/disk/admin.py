"""What a person does with the disk cache, while a server may be using it: `milepost cache`.

It works on folders without knowing the model: all it does is reading, checking and removing. What
it removes is a miss for the server. All functions may raise `DiskCacheUnusable`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from milepost.cache.disk.blob_files import BlobFiles
from milepost.cache.disk.blob_reader import read_payload
from milepost.cache.disk.fingerprint import FINGERPRINT_FILE, KEY_BYTES
from milepost.cache.disk.folder import BLOB_FOLDER, INDEX_FILE, DiskFolder
from milepost.cache.disk.index import Index
from milepost.cache.disk.stored_forest import NO_RUN, StoredBlob, StoredForest
from milepost.cache.disk.writer import SECONDS_PER_DAY
from milepost.errors import DiskCacheUnusable, StoredStateLost


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """What one folder holds."""

    name: str
    fingerprint: str  # JSON; "" if it cannot be read
    num_segments: int = 0
    num_checkpoints: int = 0
    num_logits: int = 0  # after prompts
    num_bytes: int = 0
    written_today_bytes: int = 0
    last_used_s: float = 0.0
    problem: str = ""  # why nothing is known of it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a blob."""

    blob: StoredBlob
    problem: str


def find_folders(root: Path) -> list[Path]:
    """Return the folders of all fingerprints below a cache folder."""
    try:
        found = sorted(path for path in root.iterdir() if path.is_dir() and _is_name(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DiskCacheUnusable(f"the cache folder {root} cannot be read ({error})") from error
    return found


def find_folder(root: Path, beginning: str) -> Path:
    """Return the one folder whose name begins so."""
    found = [path for path in find_folders(root) if path.name.startswith(beginning)]
    if len(found) != 1:
        raise DiskCacheUnusable(
            f"{len(found)} folders in {root} have a name that begins with {beginning!r}; "
            "`milepost cache ls` shows them"
        )
    return found[0]


def summarise_folder(path: Path, now_s: float) -> FolderSummary:
    """Return what a folder holds, or what keeps it from being read."""
    fingerprint = _read_fingerprint(path)
    try:
        with opened(path) as index:
            blobs = index.load_blobs(index.blob_ids()).blobs
            written_bytes = index.written_bytes(int(now_s // SECONDS_PER_DAY))
    except DiskCacheUnusable as error:
        return FolderSummary(path.name, fingerprint, problem=str(error))
    return FolderSummary(
        name=path.name,
        fingerprint=fingerprint,
        num_segments=sum(blob.kind == "segment" for blob in blobs),
        num_checkpoints=sum(blob.kind == "checkpoint" for blob in blobs),
        num_logits=sum(blob.kind == "logits" for blob in blobs),
        num_bytes=sum(blob.file_bytes for blob in blobs),
        written_today_bytes=written_bytes,
        last_used_s=max((blob.last_used_s for blob in blobs), default=0.0),
    )


def load_folder(path: Path) -> StoredForest:
    """Return all that a folder's index knows."""
    with opened(path) as index:
        return index.load()


def verify_folder(path: Path) -> Iterator[StoredBlob | Verdict]:
    """Read every blob; yield it if it is whole, else what is wrong. Nothing is removed."""
    files = _files_of(path)
    for blob in load_folder(path).blobs:
        try:
            read_payload(files.path_of(blob.id), blob)
        except (StoredStateLost, OSError) as error:
            yield Verdict(blob, str(error))
        else:
            yield blob


def remove_blobs(path: Path, blobs: list[StoredBlob]) -> None:
    """Remove blobs, files first."""
    with opened(path) as index:
        for blob in blobs:
            _files_of(path).remove(blob.id)
        with index.transaction():
            index.remove_blobs([blob.id for blob in blobs])


def purge_folder(path: Path) -> None:
    """Remove every state and token; the folder and its count of written bytes stay."""
    key, files = bytes.fromhex(path.name), _files_of(path)
    with opened(path) as index:
        DiskFolder(path, key, _read_fingerprint(path), files).remove_contents(index)


def choose_pruned(forest: StoredForest, max_bytes: int, min_used_s: float) -> list[StoredBlob]:
    """Choose what goes, so that the rest fits and was used since `min_used_s`.

    What was used longest ago goes first, and of one history the deeper: a segment is of no use
    without those above it, and so counts as used when anything below it was.
    """
    uses = _last_uses(forest)
    blobs = sorted(forest.blobs, key=lambda blob: (uses[blob.run], -blob.end))
    excess = sum(blob.file_bytes for blob in blobs) - max_bytes
    pruned = []
    for blob in blobs:
        if excess <= 0 and uses[blob.run] >= min_used_s:
            break
        pruned.append(blob)
        excess -= blob.file_bytes
    return pruned


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Index]:
    """Open the index of an existing folder for a while; makes nothing."""
    index_path = path / INDEX_FILE
    if not index_path.is_file():
        raise DiskCacheUnusable(f"the folder {path} has no index; a server will make it again")
    try:
        index = Index.open(index_path)
        try:
            yield index
        finally:
            index.close()
    except (OSError, sqlite3.Error) as error:
        raise DiskCacheUnusable(
            f"the index {index_path} cannot be used ({error}); if it is damaged, the next server "
            "that uses the folder makes it again"
        ) from error


def _last_uses(forest: StoredForest) -> dict[int, float]:
    """Return for each run when it, or any run below it, was used last."""
    uses = dict.fromkeys(forest.runs.ids, 0.0)
    for blob in forest.blobs:
        uses[blob.run] = max(uses.get(blob.run, 0.0), blob.last_used_s)
    numbers = zip(forest.runs.ids, forest.runs.parents, strict=True)
    for run, parent in reversed(list(numbers)):  # children before their parents
        if parent != NO_RUN:
            uses[parent] = max(uses[parent], uses[run])
    return uses


def _files_of(path: Path) -> BlobFiles:
    return BlobFiles(path / BLOB_FOLDER, lambda step: None)


def _read_fingerprint(path: Path) -> str:
    try:
        return (path / FINGERPRINT_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_name(name: str) -> bool:
    return len(name) == 2 * KEY_BYTES and set(name) <= set("0123456789abcdef")

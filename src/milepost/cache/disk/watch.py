"""What other processes store in a folder, and remove from it, while this one runs.

Of the writer's thread, which looks when nothing is to be written, a second apart. SQLite counts the
commits of all other connections (`PRAGMA data_version`): while that number stays, nothing else is
read. Otherwise ids are compared, and rows are read of those that are new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milepost.cache.disk.index import Index
from milepost.cache.disk.stored_forest import StoredForest

# At most so many are told at once: the loop attaches them between two of its steps. Arbitrary.
MAX_TOLD_BLOBS = 256


@dataclass(frozen=True, slots=True)
class Changes:
    """What other processes did since it was last asked."""

    added: StoredForest
    removed: list[int]  # ids


class FolderWatch:
    """Knows the ids that this process knows."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._version: int | None = None  # of the index when all was known

    def know(self, ids: Iterable[int]) -> None:
        """Learn what this process knows anyway."""
        self._known.update(ids)

    def forget(self, ids: Iterable[int]) -> None:
        """Learn what this process has removed."""
        self._known.difference_update(ids)

    def reset(self) -> None:
        """Learn that the index is another file or connection: its versions are others."""
        self._version = None

    def find_changes(self, index: Index) -> Changes | None:
        """Return what others did since the last call, or a part of it; None: nothing.

        Raises:
            sqlite3.Error: the index cannot be read now.
        """
        version = index.data_version()
        if version == self._version:
            return None
        ids = index.blob_ids()
        removed = [blob_id for blob_id in self._known if blob_id not in ids]
        fresh = ids - self._known
        added = index.load_blobs(fresh) if fresh else StoredForest.of_nothing()
        # Parents first: what others go on from must be told before them.
        added.blobs.sort(key=lambda blob: (blob.run, blob.end))
        is_all = len(added.blobs) <= MAX_TOLD_BLOBS
        del added.blobs[MAX_TOLD_BLOBS:]
        self._known.difference_update(removed)
        self._known.update(blob.id for blob in added.blobs)
        self._version = version if is_all else None
        return Changes(added, removed) if added.blobs or removed else None

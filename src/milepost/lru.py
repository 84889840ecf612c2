"""A mapping of bounded size, from which goes first what was not used for longest.

The one of the whole program: whatever remembers something up to a number of entries, bytes or
characters does so here. What keeps the last of a kind, used or not, is no such thing: it is a ring
(the last requests, say).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key; each method holds a lock, so threads may share one.

    What is put in is not copied: it must not be changed any more, or nobody minds.
    """

    def __init__(
        self,
        max_items: int | None = None,
        *,
        max_size: int | None = None,
        size_of: Callable[[K, V], int] = lambda key, value: 1,
    ) -> None:
        """Hold at most `max_items`, and such of at most `max_size` together; None: no bound."""
        self._max_items = max_items
        self._max_size = max_size
        self._size_of = size_of
        self._values: dict[K, V] = {}  # last used last
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    @property
    def size(self) -> int:
        """The sizes of all values together, in the unit of `size_of`."""
        return self._size

    def get(self, key: K) -> V | None:
        """Return a value, which is the last used now; None if it is not here."""
        with self._lock:
            if key not in self._values:
                return None
            value = self._values[key] = self._values.pop(key)
            return value

    def peek(self, key: K) -> V:
        """Return a value without using it; raises KeyError if it is not here."""
        return self._values[key]

    def values(self) -> list[V]:
        """Return all values without using them, the last used at the end."""
        with self._lock:
            return list(self._values.values())

    def put(self, key: K, value: V) -> list[tuple[K, V]]:
        """Add a value, or replace one, as the last used; return what was evicted for it.

        One that is too large by itself is not kept: it is what is evicted.
        """
        size = self._size_of(key, value)
        with self._lock:
            self._remove(key)
            if self._max_size is not None and size > self._max_size:
                return [(key, value)]
            self._values[key] = value
            self._size += size
            evicted: list[tuple[K, V]] = []
            while self._is_too_full():
                oldest = next(iter(self._values))
                evicted.append((oldest, self._values[oldest]))
                self._remove(oldest)
            return evicted

    def pop(self, key: K) -> V | None:
        """Take a value out and return it; None if it is not here."""
        with self._lock:
            return self._remove(key)

    def clear(self) -> None:
        """Take everything out."""
        with self._lock:
            self._values.clear()
            self._size = 0

    def _is_too_full(self) -> bool:
        has_too_many = self._max_items is not None and len(self._values) > self._max_items
        return has_too_many or (self._max_size is not None and self._size > self._max_size)

    def _remove(self, key: K) -> V | None:
        if key not in self._values:
            return None
        value = self._values.pop(key)
        self._size -= self._size_of(key, value)
        return value

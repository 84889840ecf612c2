"""How many requests may wait for a slot, and when it is worth asking again.

The engine queues whatever it is sent. The front end sees how many choices have not ended and how
many slots there are, so it knows who waits without asking; a client that has left is out at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from milepost.errors import QueueFull

MAX_RETRY_S = 60  # arbitrary; one long prefill may hold everything up for that long


class WaitingLine:
    """Refuses what would have to wait after `max_waiting` others; -1: nothing."""

    def __init__(self, max_waiting: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_refused = 0
        self._max_waiting = max_waiting
        self._clock = clock
        self._busy_since_s: float | None = None  # since when no slot has been free
        self._num_left = 0  # requests that ended since then, or whose client went away

    def check(self, num_choices: int, running: Iterable[int], num_slots: int) -> None:
        """Raise QueueFull for a request that would be one too many to wait.

        `running` are the choices of each request that have not ended, in the order of arrival.
        """
        num_waiting = count_waiting([*running, num_choices], num_slots)
        if self._max_waiting < 0 or num_waiting <= self._max_waiting:
            return
        self.num_refused += 1
        raise QueueFull(num_waiting - 1, num_slots, self._estimate_retry_s())

    def note_load(self, num_choices: int, num_slots: int) -> None:
        """Take how many choices have not ended, whenever a request comes or is over."""
        if num_choices < num_slots:
            self._busy_since_s = None
        elif self._busy_since_s is None:
            self._busy_since_s = self._clock()
            self._num_left = 0

    def note_end(self) -> None:
        """A request is over, so that another one moves up."""
        self._num_left += 1

    def _estimate_retry_s(self) -> int:
        """Return in how many seconds the next place should become free, as things went so far."""
        if self._busy_since_s is None:
            return 1
        busy_s = self._clock() - self._busy_since_s
        return min(max(math.ceil(busy_s / max(self._num_left, 1)), 1), MAX_RETRY_S)


def count_waiting(num_choices: Iterable[int], num_slots: int) -> int:
    """Return how many requests wait, of all in the order of arrival, given their choices.

    Each choice takes a slot. The first request that does not fit holds up all after it, as in the
    engine.
    """
    num_waiting = num_taken = 0
    for number in num_choices:
        num_taken += number
        num_waiting += num_taken > num_slots
    return num_waiting

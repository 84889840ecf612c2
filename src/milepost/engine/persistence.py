"""When conversations are written to disk: after a turn, when it is quiet, or at the end.

Writing competes with the compute threads for the cores, so by default it waits until nothing has
run for a while; a server that is never quiet writes what has waited for long all the same. Where
memory is nearly full it waits for nothing: what has no copy on disk would be evicted for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from milepost.arrays import Tokens
from milepost.cache.disk.tier import PromptEnd
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.tree import shared_length
from milepost.engine.prompt_logits import PromptLogits
from milepost.kinds import SyncMode

QUIET_S = (
    3.0  # nothing runs: the client is busy with its tools, or its user with reading; arbitrary
)
MAX_WAIT_S = 60.0  # of a conversation, while others run; arbitrary
POLL_S = 0.2  # how often it is asked what was written, while nothing else happens; arbitrary
TIGHT_SHARE = 0.75  # of --cache-ram in use; arbitrary: a turn seldom adds a quarter of it
CLOSE_S = 20.0  # for what is left at the end; less than the supervisor waits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A conversation that was computed and is not on disk yet."""

    tokens: Tokens  # the answer included
    num_prompt_tokens: int
    ended_s: float


class Persister:
    """Owns the list of what is not on disk yet."""

    def __init__(
        self,
        cache: PrefixCache,
        sync: SyncMode,
        prompt_logits: PromptLogits,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._prompt_logits = prompt_logits
        self._sync = sync
        self._clock = clock
        self._unsaved: list[Unsaved] = []  # the oldest first
        self._is_tight = False  # memory would evict what the disk does not have

    def note(self, tokens: Tokens, num_prompt_tokens: int) -> None:
        """Remember a conversation that has ended; an earlier turn of it need not be written."""
        if not self._cache.has_disk:
            return
        self._unsaved = [
            earlier
            for earlier in self._unsaved
            if shared_length(earlier.tokens, tokens) < earlier.num_prompt_tokens
        ]
        self._unsaved.append(Unsaved(tokens.copy(), num_prompt_tokens, self._clock()))
        self._is_tight = self._cache.has_unwritten(TIGHT_SHARE)

    def work(self, *, is_idle: bool) -> None:
        """Begin to write what is due, and note what was written; waits for nothing."""
        if not self._cache.has_disk:
            return
        now_s = self._clock()
        while self._unsaved and self._is_due(self._unsaved[0], now_s, is_idle=is_idle):
            if not self._write(self._unsaved[0]):
                break
            self._unsaved.pop(0)
        self._cache.settle_writes(now_s)

    def wait_s(self) -> float | None:
        """Return how long the loop may sleep when nothing runs; None: for ever."""
        if not self._cache.has_disk:
            return None
        if self._cache.is_writing:
            return POLL_S
        if not self._unsaved or self._sync == "exit":
            return None
        return max(0.0, self._unsaved[0].ended_s + QUIET_S - self._clock())

    def close(self) -> None:
        """Write all that is left, the latest first, and wait for it."""
        if not self._cache.has_disk:
            return
        deadline_s = self._clock() + CLOSE_S
        is_done = all(self._write_by(deadline_s, each) for each in reversed(self._unsaved))
        if not self._cache.close_disk(max(0.0, deadline_s - self._clock())) or not is_done:
            logger.warning("the disk is slow: some conversations were not written")

    def _write(self, unsaved: Unsaved) -> bool:
        prompt = unsaved.tokens[: unsaved.num_prompt_tokens]
        logits = self._prompt_logits.find_logits(prompt)
        prompt_end = None if logits is None else PromptEnd(len(prompt), logits.data)
        return self._cache.write_history(unsaved.tokens, prompt_end)

    def _write_by(self, deadline_s: float, unsaved: Unsaved) -> bool:
        """Write a conversation, waiting for room in the queue; return whether it was in time."""
        while not self._write(unsaved):
            now_s = self._clock()
            if not self._cache.flush_writes(now_s, max(0.0, deadline_s - now_s)):
                return False
        return True

    def _is_due(self, unsaved: Unsaved, now_s: float, *, is_idle: bool) -> bool:
        if self._sync == "turn" or self._is_tight:
            return True
        if self._sync == "exit":
            return False
        waited_s = now_s - unsaved.ended_s
        return waited_s >= (QUIET_S if is_idle else MAX_WAIT_S)

"""What an engine process can be asked besides generating: its slots, its cache, sizes of media.

Answers come between two batches, so they may take as long as a prefill chunk.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

from milepost.errors import MilepostError
from milepost.protocol.cache import (
    CacheAction,
    CacheChanged,
    CacheSummary,
    ChangeCache,
    GetCache,
)
from milepost.protocol.failure import error_from
from milepost.protocol.messages import (
    ChangeSlot,
    CountMedia,
    GetStatus,
    MediaCounts,
    MediaRef,
    Message,
    SlotAction,
    SlotChanged,
    Status,
)

Answer = Status | CacheSummary | CacheChanged | SlotChanged | MediaCounts


class EngineQueries(ABC):
    """Sends questions and hands the answers to who waits; the base of `EngineClient`."""

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Future[Answer]] = {}
        self._query_ids = itertools.count(1)

    async def get_status(self) -> Status:
        """Ask the engine for its slots and counters; raises Unavailable while not ready.

        The answer comes between two batches, so it may take as long as a prefill chunk.
        """
        status_id = next(self._query_ids)
        answer = await self._query(status_id, GetStatus(status_id=status_id))
        assert isinstance(answer, Status)
        return answer

    async def get_cache(self, max_nodes: int) -> CacheSummary:
        """Ask the engine what its cache holds; as late, and refused, as `get_status`."""
        query_id = next(self._query_ids)
        answer = await self._query(query_id, GetCache(query_id=query_id, max_nodes=max_nodes))
        assert isinstance(answer, CacheSummary)
        return answer

    async def change_cache(self, action: CacheAction, request_id: int = -1) -> CacheChanged:
        """Clear the cache, or change what an earlier request left there; as `get_status`."""
        query_id = next(self._query_ids)
        message = ChangeCache(query_id=query_id, action=action, request_id=request_id)
        answer = await self._query(query_id, message)
        assert isinstance(answer, CacheChanged)
        return answer

    async def change_slot(self, slot_id: int, action: SlotAction, path: str = "") -> SlotChanged:
        """Save, restore or erase a slot, when it is idle; as `get_status`.

        Raises what the engine says: InvalidRequest, NotSupported.
        """
        query_id = next(self._query_ids)
        message = ChangeSlot(query_id=query_id, slot_id=slot_id, action=action, path=path)
        answer = await self._query(query_id, message)
        assert isinstance(answer, SlotChanged)
        if answer.failure is not None:
            raise error_from(answer.failure)
        return answer

    async def count_media(self, media: Sequence[MediaRef]) -> tuple[int, ...]:
        """Ask the engine how many tokens each of these takes; as late, and refused, as the others.

        Raises what the engine says: InvalidRequest, NotSupported.
        """
        query_id = next(self._query_ids)
        answer = await self._query(query_id, CountMedia(query_id=query_id, media=tuple(media)))
        assert isinstance(answer, MediaCounts)
        if answer.failure is not None:
            raise error_from(answer.failure)
        return answer.counts

    async def _query(self, query_id: int, message: Message) -> Answer:
        self._check_ready()
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiters[query_id] = waiter
        try:
            self._send(message)
            return await waiter
        finally:
            self._waiters.pop(query_id, None)

    def _take_answer(self, query_id: int, answer: Answer) -> None:
        """Hand an answer to who waits for it, if somebody does."""
        waiter = self._waiters.get(query_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _fail_queries(self, error: MilepostError) -> None:
        """Nobody will answer any more."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()

    @abstractmethod
    def _check_ready(self) -> None:
        """Raise Unavailable while the process cannot be asked."""

    @abstractmethod
    def _send(self, message: Message) -> None:
        """Send a message to the process."""

"""What the front end may ask of the prefix cache, and do to it, between two batches."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from milepost.arrays import Tokens
from milepost.cache.tree import Node, shared_length
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.reporting import Totals
from milepost.engine.slots import SlotTable
from milepost.protocol.cache import (
    CacheChanged,
    CacheNode,
    CacheSummary,
    ChangeCache,
    GetCache,
)

# How long a request can be named for a pin or drop: the front end lists as many.
MAX_REQUESTS = 256
MAX_REQUEST_TOKENS = 1 << 22  # of all of them: 16 MiB; arbitrary
MAX_SUMMARY_NODES = 1024  # 100 KB on the wire; arbitrary

logger = logging.getLogger(__name__)


class CacheControl:
    """Owns the tokens of the last requests, by the front end's number for them.

    They are a ring, not a cache, as those of the front end are: to pin one does not keep it.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        slots: SlotTable,
        totals: Totals,
        forget_media: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = runtime.cache
        self._prompt_logits = runtime.prompt_logits
        self._slots = slots
        self._totals = totals
        self._forget_media = forget_media
        self._clock = clock
        self._requests: dict[int, Tokens] = {}  # the latest last
        self._num_tokens = 0

    def note_request(self, request_id: int, tokens: Tokens) -> None:
        """Remember the tokens that a request computed; they are copied."""
        self._requests[request_id] = np.array(tokens, np.int32)
        self._num_tokens += len(tokens)
        while len(self._requests) > MAX_REQUESTS or self._num_tokens > MAX_REQUEST_TOKENS:
            self._num_tokens -= len(self._requests.pop(next(iter(self._requests))))

    def summarise(self, message: GetCache) -> CacheSummary:
        """Return the sizes, and the most recently used part of the tree."""
        sizes = self._cache.statistics()
        max_nodes = max(0, min(message.max_nodes, MAX_SUMMARY_NODES))
        now_s = self._clock()
        return CacheSummary(
            query_id=message.query_id,
            nodes=tuple(
                describe_node(node, parent, now_s)
                for parent, node in self._cache.recent_nodes(max_nodes)
            ),
            num_nodes=sizes.num_nodes,
            num_tree_tokens=sizes.num_tokens,
            tree_bytes=sizes.token_bytes,
            num_kv_cache_tokens=sum(slot.num_tokens for slot in self._slots.all),
            counters=self._totals.counters(),
            ram=self._totals.ram(),
            disk=self._totals.disk(),
        )

    def change(self, message: ChangeCache) -> CacheChanged:
        """Carry out a change; what runs goes on, and is written when it ends."""
        if message.action == "clear":
            return CacheChanged(query_id=message.query_id, freed_bytes=self._clear())
        tokens = self._requests.get(message.request_id)
        if tokens is None:
            return CacheChanged(query_id=message.query_id, found=False)
        if message.action == "pin":
            found = self._cache.pin_lastingly(tokens, "client")
            return CacheChanged(query_id=message.query_id, found=found)
        if message.action == "unpin":
            self._cache.unpin_lastingly(tokens)  # one that is not pinned stays so
            return CacheChanged(query_id=message.query_id)
        return CacheChanged(query_id=message.query_id, freed_bytes=self._drop(message.request_id))

    def _clear(self) -> int:
        self._requests.clear()
        self._num_tokens = 0
        for slot in self._slots.resting:
            self._slots.clear_slot(slot)
        self._prompt_logits.forget_all()
        self._forget_media()
        freed_bytes = self._cache.drop_all()
        logger.info("the prefix cache was cleared: %d bytes", freed_bytes)
        return freed_bytes

    def _drop(self, request_id: int) -> int:
        tokens = self._requests.pop(request_id)
        self._num_tokens -= len(tokens)
        self._prompt_logits.forget_all()  # it may be among them
        if int(tokens.min(initial=0)) < 0:
            self._forget_media()  # likewise
        freed_bytes = self._cache.drop(tokens)
        num_left = self._cache.known_until(tokens)  # other conversations share it
        for slot in self._slots.resting:
            if shared_length(slot.held, tokens) > num_left:
                self._slots.clear_slot(slot)
        return freed_bytes


def describe_node(node: Node, parent: int, now_s: float) -> CacheNode:
    """Return a node of the tree as it goes over the wire; `parent` is the index of another one."""
    return CacheNode(
        parent=parent,
        start=node.start,
        end=node.end,
        saved_until=node.saved_until,
        checkpoints=tuple((checkpoint.pos, checkpoint.kind) for checkpoint in node.checkpoints),
        num_bytes=node.num_bytes,
        num_children=len(node.children),
        num_hits=node.num_hits,
        idle_s=now_s - node.last_used.seconds,
        pins=tuple(sorted(node.pins)),
    )

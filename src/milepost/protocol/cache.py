"""What the engine says about the prefix cache, and what it may be asked about it.

A `CacheReport` comes with the end of each request (docs/cache-report.md). The others go as they are
asked: `GetCache` is answered by a `CacheSummary`, `ChangeCache` by a `CacheChanged`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from milepost.protocol.counters import Counters, DiskSizes, RamSizes, public_name

RestoreKind = Literal["none", "kv_cache", "parked", "rewind", "ram", "disk"]
CacheAction = Literal["clear", "pin", "unpin", "drop"]
# What most of a prefill is put down to: an interpretation of the facts in a `CacheReport`, made
# from tokens and boundaries only (docs/cache-report.md).
CacheReason = Literal[
    "first_request",  # nothing of the prompt was known
    "extended",  # it goes on where what is known ends
    # the prompt parts from what is known
    "edited_message",
    "stripped_reasoning",
    "changed_system",
    "changed_tools",
    "pruned_history",
    "compacted",
    "branch",
    # what is known could not be reused
    "evicted",
    "no_checkpoint_at",
    "not_saved",
    "window_lost",
    "restore_refused_slower",
    "restore_failed",
    "cache_off",  # the request asked for it
]


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a prompt: facts, and `reason`, which is read out of them."""

    source: RestoreKind = "none"  # of the reused tokens
    num_reused: int = 0  # prompt tokens; the same as `Timings.cache_n`
    num_restored_bytes: int = 0  # copied for that
    restore_ms: float = 0.0
    num_prefilled: int = 0  # prompt tokens that were computed, again after a preemption included
    num_prefill_chunks: int = 0  # batches that held a part of the prompt
    num_checkpoints: int = 0  # states kept on the way, that of the prompt's end included
    num_known: int = 0  # prompt tokens that an earlier request had computed
    num_prefilled_twice: int = 0  # of these, not reused; the last token does not count
    num_media: int = 0  # images and pieces of audio in the prompt
    num_media_encoded: int = 0  # of these, by the projector for this request
    num_failed_restores: int = 0
    num_refused_sources: int = 0  # would have reused more, but slower than computing it
    divergence: Divergence | None = None  # None: all that is known is as in the prompt
    reason: CacheReason = "first_request"


class Divergence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a prompt parts from the latest history that it shares a prefix with."""

    pos: int  # the first token that differs
    message_index: int = -1  # of the message that it lies in; -1: unknown
    role: str = ""
    prompt_excerpt: str = ""  # how the prompt goes on
    known_excerpt: str = ""  # how the history goes on


class GetCache(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for a `CacheSummary` with the same id."""

    query_id: int
    max_nodes: int = 256


class CacheNode(msgspec.Struct, frozen=True, kw_only=True, rename=public_name):
    """One edge of the radix tree: tokens [start, end) of the histories that go through it.

    Nodes go over the wire, and into the JSON of `GET /cache`, as they are here.
    """

    parent: int  # index in the summary, -1: the root
    start: int
    end: int
    saved_until: int  # attention cells are stored for [start, saved_until)
    checkpoints: tuple[tuple[int, str], ...]  # position and kind
    num_bytes: int  # in memory, of its checkpoints and of the segments that begin here
    num_children: int
    num_hits: int  # prompts that went through it
    idle_s: float  # since it was last used
    pins: tuple[int, ...]  # positions


class CacheSummary(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `GetCache`: sizes now, and the most recently used part of the tree."""

    query_id: int
    nodes: tuple[CacheNode, ...]  # parents first
    num_nodes: int  # of the whole tree
    num_tree_tokens: int
    tree_bytes: int
    num_kv_cache_tokens: int  # held there, those that slots share counted for each
    counters: Counters
    ram: RamSizes
    disk: DiskSizes


class ChangeCache(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Forget everything, or pin, unpin or drop the conversation of one request.

    Answered by a `CacheChanged` with the same id.
    """

    query_id: int
    action: CacheAction
    request_id: int = -1  # of an earlier `Generate`; not for "clear"


class CacheChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `ChangeCache`."""

    query_id: int
    found: bool = True  # False: the request is not known (any more)
    freed_bytes: int = 0

"""Bodies of the endpoints that explain and control the prefix cache (docs/cache-report.md)."""

from __future__ import annotations

import msgspec

from milepost.api.cache_sentence import explain, explain_replies
from milepost.api.fields import RequestModel, Text
from milepost.api.request_log import RequestRecord
from milepost.chat.prompts.reply_matching import ReplyCounts
from milepost.protocol.messages import CacheReason, CacheReport, CacheSummary, RestoreKind

# --- requests ----------------------------------------------------------------------------


class RequestIdFields(RequestModel):
    """Body of `/cache/pin` and `/cache/drop`."""

    request_id: Text


# --- answers -----------------------------------------------------------------------------


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/requests`; sums, where a request has several prompts."""

    id: str
    time: float  # Unix time at which it came
    path: str
    status: int  # 0: nothing was sent yet
    is_running: bool
    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int
    source: RestoreKind | None  # of the first prompt; None while it is not known
    reason: CacheReason | None  # the same
    ms: float | None


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/requests`, the latest first."""

    requests: tuple[RequestShape, ...]


class DivergenceShape(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt parts from the latest history that it shares a prefix with."""

    position: int
    message_index: int | None
    role: str | None
    prompt_excerpt: str
    known_excerpt: str


class FactsShape(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, done and counted."""

    prompt_tokens: int
    known_tokens: int
    reused_tokens: int
    source: RestoreKind
    restored_bytes: int
    restore_ms: float
    prefilled_tokens: int
    prefilled_twice_tokens: int
    prefill_chunks: int
    media: int
    media_encoded: int
    checkpoints: int
    failed_restores: int
    refused_sources: int
    divergence: DivergenceShape | None


class InterpretationShape(msgspec.Struct, frozen=True, kw_only=True):
    """What is read out of the facts; may be wrong about what the client meant."""

    reason: CacheReason
    sentence: str


class PromptReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one prompt."""

    facts: FactsShape
    interpretation: InterpretationShape


class RepliesShape(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the assistant messages of a conversation."""

    exact: int  # have the tokens that were sampled
    unknown: int
    changed: int
    without_reasoning: int
    written_differently: int
    sentence: str


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/requests/{id}/why`; nearly every request has one prompt."""

    request: RequestShape
    prompts: tuple[PromptReport, ...]
    replies: RepliesShape | None  # None where the prompt is no conversation


class KvCacheTier(msgspec.Struct, frozen=True, kw_only=True):
    """What the KV cache of the context holds."""

    tokens: int


class RamTier(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache holds in memory."""

    bytes: int
    budget_bytes: int
    segments: int
    segment_bytes: int
    checkpoints: int
    checkpoint_bytes: int


class DiskTier(msgspec.Struct, frozen=True, kw_only=True):
    """What the disk holds for this model; all 0 where none is used."""

    bytes: int
    budget_bytes: int
    blobs: int  # states and segments
    written_bytes: int  # since the engine was started
    written_today_bytes: int  # by all processes
    read_bytes: int
    lost: int  # gone or damaged when they were needed
    refused: int  # not written: no room, or no more today


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One edge of the tree."""

    parent: int  # index in the list; -1: the root
    start: int
    end: int
    saved_until: int
    checkpoints: tuple[tuple[int, str], ...]
    bytes: int
    children: int
    hits: int
    idle_s: float
    pins: tuple[int, ...]


class TreeShape(msgspec.Struct, frozen=True, kw_only=True):
    """The histories that are known."""

    num_nodes: int
    tokens: int
    bytes: int
    nodes: tuple[NodeShape, ...]  # the most recently used ones, parents first


class CountersShape(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the engine was started."""

    requests: int
    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    prefilled_twice_tokens: int
    kv_cache_restores: int
    parked_restores: int
    rewind_restores: int
    ram_restores: int
    disk_restores: int
    failed_restores: int
    restored_bytes: int
    checkpoints: int
    saved_bytes: int
    evicted_checkpoints: int
    evicted_segments: int
    thinned_checkpoints: int
    media_encoded: int
    media_reused: int
    media_encode_s: float


class CacheAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /cache`."""

    kv_cache: KvCacheTier
    ram: RamTier
    disk: DiskTier
    tree: TreeShape
    counters: CountersShape


class FreedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `DELETE /cache` and `/cache/drop`."""

    freed_bytes: int


class PinnedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/cache/pin` and `/cache/unpin`."""

    request_id: str
    pinned: bool


def request_shape(record: RequestRecord) -> RequestShape:
    """Return a line of the list of requests."""
    reports = record.reports
    return RequestShape(
        id=record.answer_id,
        time=record.received_s,
        path=record.path,
        status=record.status,
        is_running=record.elapsed_s < 0,
        prompt_tokens=record.num_prompt_tokens,
        reused_tokens=record.num_cached_tokens,
        completion_tokens=record.num_decoded_tokens,
        source=reports[0].source if reports else None,
        reason=reports[0].reason if reports else None,
        ms=None if record.elapsed_s < 0 else 1e3 * record.elapsed_s,
    )


def why_answer(record: RequestRecord) -> WhyAnswer:
    """Return all that is known about a request."""
    return WhyAnswer(
        request=request_shape(record),
        prompts=tuple(
            PromptReport(
                facts=_facts_shape(end.cache, end.num_prompt_tokens),
                interpretation=InterpretationShape(
                    reason=end.cache.reason, sentence=explain(end.cache, end.num_prompt_tokens)
                ),
            )
            for end in record.ends
            if end.cache is not None
        ),
        replies=None if record.replies is None else _replies_shape(record.replies),
    )


def cache_answer(summary: CacheSummary) -> CacheAnswer:
    """Return the engine's summary."""
    return CacheAnswer(
        kv_cache=KvCacheTier(tokens=summary.num_kv_cache_tokens),
        ram=RamTier(
            bytes=summary.segment_bytes + summary.checkpoint_bytes,
            budget_bytes=summary.budget_bytes,
            segments=summary.num_segments,
            segment_bytes=summary.segment_bytes,
            checkpoints=summary.num_checkpoints,
            checkpoint_bytes=summary.checkpoint_bytes,
        ),
        disk=_disk_shape(summary),
        tree=_tree_shape(summary),
        counters=_counters_shape(summary),
    )


def _replies_shape(counts: ReplyCounts) -> RepliesShape:
    return RepliesShape(
        exact=counts.exact,
        unknown=counts.unknown,
        changed=counts.changed,
        without_reasoning=counts.without_reasoning,
        written_differently=counts.written_differently,
        sentence=explain_replies(counts),
    )


def _facts_shape(report: CacheReport, num_prompt_tokens: int) -> FactsShape:
    found = report.divergence
    return FactsShape(
        prompt_tokens=num_prompt_tokens,
        known_tokens=report.num_known,
        reused_tokens=report.num_reused,
        source=report.source,
        restored_bytes=report.num_restored_bytes,
        restore_ms=report.restore_ms,
        prefilled_tokens=report.num_prefilled,
        prefilled_twice_tokens=report.num_prefilled_twice,
        prefill_chunks=report.num_prefill_chunks,
        media=report.num_media,
        media_encoded=report.num_media_encoded,
        checkpoints=report.num_checkpoints,
        failed_restores=report.num_failed_restores,
        refused_sources=report.num_refused_sources,
        divergence=None
        if found is None
        else DivergenceShape(
            position=found.pos,
            message_index=found.message_index if found.message_index >= 0 else None,
            role=found.role or None,
            prompt_excerpt=found.prompt_excerpt,
            known_excerpt=found.known_excerpt,
        ),
    )


def _tree_shape(summary: CacheSummary) -> TreeShape:
    return TreeShape(
        num_nodes=summary.num_nodes,
        tokens=summary.num_tree_tokens,
        bytes=summary.tree_bytes,
        nodes=tuple(
            NodeShape(
                parent=node.parent,
                start=node.start,
                end=node.end,
                saved_until=node.saved_until,
                checkpoints=node.checkpoints,
                bytes=node.num_bytes,
                children=node.num_children,
                hits=node.num_hits,
                idle_s=node.idle_s,
                pins=node.pins,
            )
            for node in summary.nodes
        ),
    )


def _disk_shape(summary: CacheSummary) -> DiskTier:
    counters = summary.counters
    return DiskTier(
        bytes=counters.num_disk_bytes,
        budget_bytes=counters.num_disk_budget_bytes,
        blobs=counters.num_disk_blobs,
        written_bytes=counters.num_disk_written_bytes,
        written_today_bytes=counters.num_disk_written_today_bytes,
        read_bytes=counters.num_disk_read_bytes,
        lost=counters.num_disk_lost,
        refused=counters.num_disk_refused,
    )


def _counters_shape(summary: CacheSummary) -> CountersShape:
    counters = summary.counters
    return CountersShape(
        requests=counters.num_requests,
        prompt_tokens=counters.num_prompt_tokens,
        reused_tokens=counters.num_cached_tokens,
        prefilled_tokens=counters.num_prefilled_tokens,
        prefilled_twice_tokens=counters.num_prefilled_twice_tokens,
        kv_cache_restores=counters.num_kv_cache_restores,
        parked_restores=counters.num_parked_restores,
        rewind_restores=counters.num_rewind_restores,
        ram_restores=counters.num_ram_restores,
        disk_restores=counters.num_disk_restores,
        failed_restores=counters.num_failed_restores,
        restored_bytes=counters.num_restored_bytes,
        checkpoints=counters.num_checkpoints,
        saved_bytes=counters.num_saved_bytes,
        evicted_checkpoints=counters.num_evicted_checkpoints,
        evicted_segments=counters.num_evicted_segments,
        thinned_checkpoints=counters.num_thinned_checkpoints,
        media_encoded=counters.num_media_encoded,
        media_reused=counters.num_media_reused,
        media_encode_s=counters.media_encode_s,
    )

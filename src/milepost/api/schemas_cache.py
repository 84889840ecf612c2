"""Bodies of the endpoints that explain and control the prefix cache (docs/cache-report.md)."""

from __future__ import annotations

import msgspec

from milepost.api.cache_sentence import explain, explain_replies
from milepost.api.gate import RequestRecord
from milepost.api.http_body import RequestModel, Text
from milepost.chat.prompts.reply_matching import ReplyCounts
from milepost.protocol.cache import (
    CacheNode,
    CacheReason,
    CacheReport,
    CacheSummary,
    RestoreKind,
)
from milepost.protocol.counters import Counters, DiskSizes, RamSizes

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


class TreeShape(msgspec.Struct, frozen=True, kw_only=True):
    """The histories that are known."""

    num_nodes: int
    tokens: int
    bytes: int
    nodes: tuple[CacheNode, ...]  # the most recently used ones, parents first


class CacheAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /cache`."""

    kv_cache: KvCacheTier
    ram: RamSizes
    disk: DiskSizes
    tree: TreeShape
    counters: Counters


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
        ram=summary.ram,
        disk=summary.disk,
        tree=_tree_shape(summary),
        counters=summary.counters,
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
        nodes=summary.nodes,
    )

"""Every metric once: its name, kind, help, and where it is read from: an engine's status, or what
the front end counts itself.

Names are llama-server's with the prefix `milepost_`: its own prefix has a colon, which Prometheus
reserves for recording rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from milepost.protocol.messages import Status

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class FrontEndCounts:
    """What the front end counts since it was started."""

    num_refused: int = 0  # requests
    # Replies that came back in a conversation, when they did first:
    num_exact_replies: int = 0  # with the tokens that were sampled
    num_unknown_replies: int = 0
    num_changed_replies: int = 0
    num_bare_replies: int = 0  # without their reasoning
    num_rewritten_replies: int = 0  # by the template


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """One number that is read from a source."""

    name: str  # of a counter without `_total`
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Source], float]
    labels: Mapping[str, str] = field(default_factory=dict)  # same name: one after the other


FRONT_END_METRICS: tuple[Metric[FrontEndCounts], ...] = (
    Metric(
        "milepost_requests_refused",
        "counter",
        "Requests that got a 503 because --max-waiting others waited for a slot.",
        lambda counts: counts.num_refused,
    ),
    Metric(
        "milepost_replies",
        "counter",
        "Replies that a client sent back, by what became of their tokens.",
        lambda counts: counts.num_exact_replies,
        {"outcome": "exact"},
    ),
    Metric(
        "milepost_replies",
        "counter",
        "Replies that a client sent back, by what became of their tokens.",
        lambda counts: counts.num_unknown_replies,
        {"outcome": "unknown"},
    ),
    Metric(
        "milepost_replies",
        "counter",
        "Replies that a client sent back, by what became of their tokens.",
        lambda counts: counts.num_changed_replies,
        {"outcome": "changed"},
    ),
    Metric(
        "milepost_replies",
        "counter",
        "Replies that a client sent back, by what became of their tokens.",
        lambda counts: counts.num_bare_replies,
        {"outcome": "without_reasoning"},
    ),
    Metric(
        "milepost_replies",
        "counter",
        "Replies that a client sent back, by what became of their tokens.",
        lambda counts: counts.num_rewritten_replies,
        {"outcome": "written_differently"},
    ),
)
ENGINE_METRICS: tuple[Metric[Status], ...] = (
    Metric(
        "milepost_requests",
        "counter",
        "Requests that reached the engine.",
        lambda status: status.counters.num_requests,
    ),
    Metric(
        "milepost_prompt_tokens",
        "counter",
        "Prompt tokens that were computed, without those from the cache.",
        lambda status: status.counters.num_prefilled_tokens,
    ),
    Metric(
        "milepost_prompt_tokens_cached",
        "counter",
        "Prompt tokens that were not computed again.",
        lambda status: status.counters.num_cached_tokens,
    ),
    Metric(
        "milepost_prompt_seconds",
        "counter",
        "Time spent on computing prompts.",
        lambda status: status.counters.prefill_s,
    ),
    Metric(
        "milepost_tokens_predicted",
        "counter",
        "Tokens that were sampled.",
        lambda status: status.counters.num_decoded_tokens,
    ),
    Metric(
        "milepost_tokens_predicted_seconds",
        "counter",
        "Time spent on decoding.",
        lambda status: status.counters.decode_s,
    ),
    Metric(
        "milepost_n_decode",
        "counter",
        "Calls of llama_decode.",
        lambda status: status.counters.num_decode_calls,
    ),
    Metric(
        "milepost_prompt_tokens_prefilled_twice",
        "counter",
        "Prompt tokens that were computed although an earlier request had computed them.",
        lambda status: status.counters.num_prefilled_twice_tokens,
    ),
    Metric(
        "milepost_restores",
        "counter",
        "Prompts that went on from what was known, by where that was.",
        lambda status: status.counters.num_kv_cache_restores,
        {"source": "kv_cache"},
    ),
    Metric(
        "milepost_restores",
        "counter",
        "Prompts that went on from what was known, by where that was.",
        lambda status: status.counters.num_parked_restores,
        {"source": "parked"},
    ),
    Metric(
        "milepost_restores",
        "counter",
        "Prompts that went on from what was known, by where that was.",
        lambda status: status.counters.num_rewind_restores,
        {"source": "rewind"},
    ),
    Metric(
        "milepost_restores",
        "counter",
        "Prompts that went on from what was known, by where that was.",
        lambda status: status.counters.num_ram_restores,
        {"source": "ram"},
    ),
    Metric(
        "milepost_restores",
        "counter",
        "Prompts that went on from what was known, by where that was.",
        lambda status: status.counters.num_disk_restores,
        {"source": "disk"},
    ),
    Metric(
        "milepost_restores_failed",
        "counter",
        "Attempts to restore that failed; the next source was tried.",
        lambda status: status.counters.num_failed_restores,
    ),
    Metric(
        "milepost_restored_bytes",
        "counter",
        "Bytes copied into the context.",
        lambda status: status.counters.num_restored_bytes,
    ),
    Metric(
        "milepost_checkpoints",
        "counter",
        "States that were kept.",
        lambda status: status.counters.num_checkpoints,
    ),
    Metric(
        "milepost_saved_bytes",
        "counter",
        "Bytes of states and attention cells that were copied into the cache.",
        lambda status: status.counters.num_saved_bytes,
    ),
    Metric(
        "milepost_evictions",
        "counter",
        "What had to go to stay within --cache-ram and, thinned, --ctx-checkpoints.",
        lambda status: status.counters.num_evicted_checkpoints,
        {"what": "checkpoint"},
    ),
    Metric(
        "milepost_evictions",
        "counter",
        "What had to go to stay within --cache-ram and, thinned, --ctx-checkpoints.",
        lambda status: status.counters.num_evicted_segments,
        {"what": "segment"},
    ),
    Metric(
        "milepost_evictions",
        "counter",
        "What had to go to stay within --cache-ram and, thinned, --ctx-checkpoints.",
        lambda status: status.counters.num_thinned_checkpoints,
        {"what": "thinned"},
    ),
    Metric(
        "milepost_disk_cache_bytes",
        "gauge",
        "Length of the files on disk that hold states and segments of this model.",
        lambda status: status.counters.num_disk_bytes,
    ),
    Metric(
        "milepost_disk_written_bytes",
        "counter",
        "Bytes that were written to the cache on disk.",
        lambda status: status.counters.num_disk_written_bytes,
    ),
    Metric(
        "milepost_disk_lost",
        "counter",
        "States and segments on disk that were gone or damaged when they were needed.",
        lambda status: status.counters.num_disk_lost,
    ),
    Metric(
        "milepost_media_encoded",
        "counter",
        "Images and audios that the projector encoded.",
        lambda status: status.counters.num_media_encoded,
    ),
    Metric(
        "milepost_media_reused",
        "counter",
        "Images and audios that a prompt needed and whose embeddings were known.",
        lambda status: status.counters.num_media_reused,
    ),
    Metric(
        "milepost_media_encode_seconds",
        "counter",
        "Time in the projector.",
        lambda status: status.counters.media_encode_s,
    ),
    Metric(
        "milepost_cache_bytes",
        "gauge",
        "Bytes of states and attention cells in the cache.",
        lambda status: status.num_cache_bytes,
    ),
    Metric(
        "milepost_requests_processing",
        "gauge",
        "Slots that work on a request.",
        lambda status: sum(slot.state != "idle" for slot in status.slots),
    ),
    Metric(
        "milepost_requests_deferred",
        "gauge",
        "Requests that wait for a slot.",
        lambda status: status.num_waiting,
    ),
    Metric(
        "milepost_context_tokens",
        "gauge",
        "Tokens held in the context, over all slots.",
        lambda status: sum(slot.num_tokens for slot in status.slots),
    ),
)

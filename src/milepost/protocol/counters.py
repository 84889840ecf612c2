"""What an engine counts and measures, each fact once: its field, and its metric for Prometheus.

In messages and in the JSON of `GET /cache` a field has its name here without `num_`. A field that
Prometheus shows as well is annotated with its `Metric`; milepost.metrics reads that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Metric:
    """How Prometheus shows a number."""

    name: str  # of a counter without `_total`
    help: str
    kind: Literal["counter", "gauge"] = "counter"
    label: tuple[str, str] = ("", "")  # fields with the same name and label follow each other


def public_name(field: str) -> str:
    """Return what a field is called outside of this program."""
    return field.removeprefix("num_")


_RESTORES = "Prompts that went on from what was known, by where that was."
_EVICTIONS = "What had to go to stay within --cache-ram and, thinned, --ctx-checkpoints."


class Counters(msgspec.Struct, kw_only=True, rename=public_name):
    """Totals since the engine was started. The engine's own is counted up; others are copies."""

    num_requests: Annotated[
        int, Metric("milepost_requests", "Requests that reached the engine.")
    ] = 0
    num_prompt_tokens: int = 0  # received
    num_cached_tokens: Annotated[
        int,
        Metric("milepost_prompt_tokens_cached", "Prompt tokens that were not computed again."),
    ] = msgspec.field(name="reused_tokens", default=0)
    num_prefilled_tokens: Annotated[
        int,
        Metric(
            "milepost_prompt_tokens",
            "Prompt tokens that were computed, without those from the cache.",
        ),
    ] = 0
    prefill_s: Annotated[
        float, Metric("milepost_prompt_seconds", "Time spent on computing prompts.")
    ] = 0.0
    num_decoded_tokens: Annotated[
        int, Metric("milepost_tokens_predicted", "Tokens that were sampled.")
    ] = 0
    decode_s: Annotated[
        float, Metric("milepost_tokens_predicted_seconds", "Time spent on decoding.")
    ] = 0.0
    num_decode_calls: Annotated[int, Metric("milepost_n_decode", "Calls of llama_decode.")] = 0
    num_prefilled_twice_tokens: Annotated[
        int,
        Metric(
            "milepost_prompt_tokens_prefilled_twice",
            "Prompt tokens that were computed although an earlier request had computed them.",
        ),
    ] = 0
    # Prompts that went on from a slot as it was, or cut back.
    num_kv_cache_restores: Annotated[
        int, Metric("milepost_restores", _RESTORES, label=("source", "kv_cache"))
    ] = 0
    # The same, from a conversation without a slot.
    num_parked_restores: Annotated[
        int, Metric("milepost_restores", _RESTORES, label=("source", "parked"))
    ] = 0
    # The same, with the state of an earlier position.
    num_rewind_restores: Annotated[
        int, Metric("milepost_restores", _RESTORES, label=("source", "rewind"))
    ] = 0
    num_ram_restores: Annotated[
        int, Metric("milepost_restores", _RESTORES, label=("source", "ram"))
    ] = 0
    # Of which a part had to be read.
    num_disk_restores: Annotated[
        int, Metric("milepost_restores", _RESTORES, label=("source", "disk"))
    ] = 0
    num_failed_restores: Annotated[
        int,
        Metric(
            "milepost_restores_failed",
            "Attempts to restore that failed; the next source was tried.",
        ),
    ] = 0
    num_restored_bytes: Annotated[
        int, Metric("milepost_restored_bytes", "Bytes copied into the context.")
    ] = 0
    num_checkpoints: Annotated[int, Metric("milepost_checkpoints", "States that were kept.")] = 0
    num_saved_bytes: Annotated[
        int,
        Metric(
            "milepost_saved_bytes",
            "Bytes of states and attention cells that were copied into the cache.",
        ),
    ] = 0
    num_evicted_checkpoints: Annotated[
        int, Metric("milepost_evictions", _EVICTIONS, label=("what", "checkpoint"))
    ] = 0
    num_evicted_segments: Annotated[
        int, Metric("milepost_evictions", _EVICTIONS, label=("what", "segment"))
    ] = 0
    # Too many along one conversation.
    num_thinned_checkpoints: Annotated[
        int, Metric("milepost_evictions", _EVICTIONS, label=("what", "thinned"))
    ] = 0
    num_media_encoded: Annotated[
        int, Metric("milepost_media_encoded", "Images and audios that the projector encoded.")
    ] = 0
    num_media_reused: Annotated[
        int,
        Metric(
            "milepost_media_reused",
            "Images and audios that a prompt needed and whose embeddings were known.",
        ),
    ] = 0
    media_encode_s: Annotated[
        float, Metric("milepost_media_encode_seconds", "Time in the projector.")
    ] = 0.0


class RamSizes(msgspec.Struct, frozen=True, kw_only=True, rename=public_name):
    """What the cache holds in memory."""

    num_bytes: Annotated[
        int,
        Metric(
            "milepost_cache_bytes", "Bytes of states and attention cells in the cache.", "gauge"
        ),
    ] = 0
    budget_bytes: int = 0
    num_segments: int = 0
    segment_bytes: int = 0
    num_checkpoints: int = 0
    checkpoint_bytes: int = 0


class DiskSizes(msgspec.Struct, frozen=True, kw_only=True, rename=public_name):
    """What the disk holds of this model, and totals; all 0 where none is used."""

    num_bytes: Annotated[
        int,
        Metric(
            "milepost_disk_cache_bytes",
            "Length of the files on disk that hold states and segments of this model.",
            "gauge",
        ),
    ] = 0
    budget_bytes: int = 0
    num_blobs: int = 0  # states and segments
    written_bytes: Annotated[
        int,
        Metric("milepost_disk_written_bytes", "Bytes that were written to the cache on disk."),
    ] = 0  # since the engine was started
    written_today_bytes: int = 0  # by all processes
    read_bytes: int = 0
    num_lost: Annotated[
        int,
        Metric(
            "milepost_disk_lost",
            "States and segments on disk that were gone or damaged when they were needed.",
        ),
    ] = 0
    num_refused: int = 0  # not written: no room, or no more today

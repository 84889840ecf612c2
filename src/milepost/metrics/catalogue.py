"""Every metric once: its name, kind, help, and where it is read from.

Names are llama-server's with the prefix `milepost_`: its own prefix has a colon, which Prometheus
reserves for recording rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from milepost.protocol.messages import Status


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that is read from an engine's status."""

    name: str  # of a counter without `_total`
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Status], float]


METRICS = (
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

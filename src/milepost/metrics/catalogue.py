"""Every metric once: what an engine counts is declared in `protocol.counters`, the rest here.

Names are llama-server's with the prefix `milepost_`: its own prefix has a colon, which Prometheus
reserves for recording rules.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from milepost.protocol.counters import Counters, DiskSizes, Metric, RamSizes
from milepost.protocol.messages import Status

Source = TypeVar("Source")

_REPLIES = "Replies that a client sent back, by what became of their tokens."


@dataclass(frozen=True, slots=True)
class FrontEndCounts:
    """What the front end counts since it was started."""

    # Requests.
    num_refused: Annotated[
        int,
        Metric(
            "milepost_requests_refused",
            "Requests that got a 503 because --max-waiting others waited for a slot.",
        ),
    ] = 0
    # Replies that came back in a conversation, when they did first:
    # with the tokens that were sampled
    num_exact_replies: Annotated[
        int, Metric("milepost_replies", _REPLIES, label=("outcome", "exact"))
    ] = 0
    num_unknown_replies: Annotated[
        int, Metric("milepost_replies", _REPLIES, label=("outcome", "unknown"))
    ] = 0
    num_changed_replies: Annotated[
        int, Metric("milepost_replies", _REPLIES, label=("outcome", "changed"))
    ] = 0
    # without their reasoning
    num_bare_replies: Annotated[
        int, Metric("milepost_replies", _REPLIES, label=("outcome", "without_reasoning"))
    ] = 0
    # by the template
    num_rewritten_replies: Annotated[
        int, Metric("milepost_replies", _REPLIES, label=("outcome", "written_differently"))
    ] = 0


@dataclass(frozen=True, slots=True)
class ReadMetric(Generic[Source]):
    """A metric, and how its number is read from a source."""

    metric: Metric
    read: Callable[[Source], float]


def read_annotated(record: type, find: Callable[[Source], object]) -> Iterator[ReadMetric[Source]]:
    """Yield the metrics that the fields of a record are annotated with; `find` finds the record."""
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        for metric in getattr(hint, "__metadata__", ()):
            yield ReadMetric(metric, _reader(find, name))


def _reader(find: Callable[[Source], object], name: str) -> Callable[[Source], float]:
    return lambda source: float(getattr(find(source), name))


def _find_counters(status: Status) -> object:
    return status.counters


def _find_ram(status: Status) -> object:
    return status.ram


def _find_disk(status: Status) -> object:
    return status.disk


def _find_itself(counts: FrontEndCounts) -> object:
    return counts


FRONT_END_METRICS: tuple[ReadMetric[FrontEndCounts], ...] = tuple(
    read_annotated(FrontEndCounts, _find_itself)
)
ENGINE_METRICS: tuple[ReadMetric[Status], ...] = (
    *read_annotated(Counters, _find_counters),
    *read_annotated(DiskSizes, _find_disk),
    *read_annotated(RamSizes, _find_ram),
    ReadMetric(
        Metric("milepost_requests_processing", "Slots that work on a request.", "gauge"),
        lambda status: sum(slot.state != "idle" for slot in status.slots),
    ),
    ReadMetric(
        Metric("milepost_requests_deferred", "Requests that wait for a slot.", "gauge"),
        lambda status: status.num_waiting,
    ),
    ReadMetric(
        Metric("milepost_context_tokens", "Tokens held in the context, over all slots.", "gauge"),
        lambda status: sum(slot.num_tokens for slot in status.slots),
    ),
)

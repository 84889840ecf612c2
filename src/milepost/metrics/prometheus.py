"""Writes the catalogue's metrics in Prometheus' text format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Generic

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from milepost.metrics.catalogue import (
    ENGINE_METRICS,
    FRONT_END_METRICS,
    FrontEndCounts,
    ReadMetric,
    Source,
)
from milepost.protocol.messages import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _Collector(Collector, Generic[Source]):
    def __init__(self, metrics: Sequence[ReadMetric[Source]], source: Source) -> None:
        self._metrics = metrics
        self._source = source

    def collect(self) -> Iterator[Family]:
        for name, group in itertools.groupby(self._metrics, key=lambda each: each.metric.name):
            first, *rest = group
            label, _ = first.metric.label
            labels = [label] if label else []
            family = FAMILIES[first.metric.kind](name, first.metric.help, labels=labels)
            for each in (first, *rest):
                values = [each.metric.label[1]] if label else []
                family.add_metric(values, float(each.read(self._source)))
            yield family


def render_metrics(status: Status, counts: FrontEndCounts) -> bytes:
    """Return the text that Prometheus scrapes."""
    # A registry of its own: the global one would add metrics of this Python process.
    registry = CollectorRegistry()
    registry.register(_Collector(ENGINE_METRICS, status))
    registry.register(_Collector(FRONT_END_METRICS, counts))
    return generate_latest(registry)

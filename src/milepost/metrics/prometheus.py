"""Writes the catalogue's metrics in Prometheus' text format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from milepost.metrics.catalogue import METRICS
from milepost.protocol.messages import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _StatusCollector(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for name, group in itertools.groupby(METRICS, key=lambda metric: metric.name):
            first, *rest = group
            family = FAMILIES[first.kind](name, first.help, labels=list(first.labels))
            for metric in (first, *rest):
                family.add_metric(list(metric.labels.values()), float(metric.read(self._status)))
            yield family


def render_metrics(status: Status) -> bytes:
    """Return the text that Prometheus scrapes."""
    # A registry of its own: the global one would add metrics of this Python process.
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    return generate_latest(registry)

"""Writes the catalogue's metrics in Prometheus' text format."""

from __future__ import annotations

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
        for metric in METRICS:
            yield FAMILIES[metric.kind](
                metric.name, metric.help, value=float(metric.read(self._status))
            )


def render_metrics(status: Status) -> bytes:
    """Return the text that Prometheus scrapes."""
    # A registry of its own: the global one would add metrics of this Python process.
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    return generate_latest(registry)

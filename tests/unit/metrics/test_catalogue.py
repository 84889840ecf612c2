"""What is declared once reaches Prometheus, the JSON and the messages under its name."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from milepost.cache.disk.store import DiskStatistics
from milepost.cache.disk.writer import WriterStatus
from milepost.cache.statistics import CacheCounters, CacheStatistics
from milepost.metrics.catalogue import ENGINE_METRICS, FRONT_END_METRICS, FrontEndCounts
from milepost.metrics.prometheus import render_metrics
from milepost.protocol.counters import Counters, DiskSizes, RamSizes
from milepost.protocol.messages import Status

# Of an engine that has counted as many of each as the place of its field.
COUNTERS = Counters(**{name: n for n, name in enumerate(Counters.__struct_fields__, 1)})
STATUS = Status(
    status_id=1,
    slots=(),
    num_waiting=3,
    counters=COUNTERS,
    ram=RamSizes(num_bytes=5),
    disk=DiskSizes(num_bytes=6, written_bytes=7, num_lost=8),
)
NOT_FOR_PROMETHEUS = {"num_prompt_tokens"}  # the sum of computed and cached ones


def test_every_counter_has_a_metric_of_its_own() -> None:
    read = [each.read(STATUS) for each in ENGINE_METRICS]
    for name in set(Counters.__struct_fields__) - NOT_FOR_PROMETHEUS:
        assert getattr(COUNTERS, name) in read
    keys = [(each.metric.name, each.metric.label) for each in ENGINE_METRICS + FRONT_END_METRICS]
    assert len(set(keys)) == len(keys)


def test_prometheus_reads_names_labels_and_help() -> None:
    text = render_metrics(STATUS, FrontEndCounts(num_refused=9, num_bare_replies=4)).decode()
    assert "# HELP milepost_requests_total Requests that reached the engine.\n" in text
    assert "milepost_requests_total 1.0\n" in text
    assert f'milepost_restores_total{{source="rewind"}} {COUNTERS.num_rewind_restores}.0\n' in text
    assert "# TYPE milepost_disk_cache_bytes gauge\nmilepost_disk_cache_bytes 6.0\n" in text
    assert "milepost_disk_written_bytes_total 7.0\n" in text
    assert "milepost_cache_bytes 5.0\n" in text
    assert "milepost_requests_deferred 3.0\n" in text
    assert 'milepost_replies_total{outcome="without_reasoning"} 4.0\n' in text
    assert text.count("# TYPE milepost_restores_total") == 1


def test_json_has_the_public_names() -> None:
    counters = msgspec.json.decode(msgspec.json.encode(COUNTERS))
    assert counters["requests"] == 1
    assert counters["reused_tokens"] == COUNTERS.num_cached_tokens
    assert not [name for name in counters if name.startswith("num_")]


def names(record: type) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize(
    ("record", "sources"),
    [(RamSizes, (CacheStatistics,)), (DiskSizes, (DiskStatistics, WriterStatus))],
)
def test_the_cache_measures_all_that_is_shown(
    record: type[msgspec.Struct], sources: tuple[type, ...]
) -> None:
    found = [name for source in sources for name in names(source)]
    assert all(found.count(name) == 1 for name in record.__struct_fields__)


def test_what_the_cache_counts_alone_is_not_counted_by_the_engine() -> None:
    shared = names(CacheCounters) & set(Counters.__struct_fields__)
    assert shared == {"num_evicted_checkpoints", "num_evicted_segments", "num_thinned_checkpoints"}

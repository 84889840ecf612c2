"""The result of a comparison: the measures of several servers on the same traces, as JSON.

Its requests are rows under one list of columns: a day of requests as records would be four times
as long, and results are kept in version control.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from milepost.bench.measures import RequestMeasure, TraceMeasure, sum_up
from milepost.errors import BenchmarkFailed

FORMAT_VERSION = 1
ALL_TRACES = "all traces"
COLUMNS = RequestMeasure.__struct_fields__
NUM_DIGITS = 5  # after the point; microseconds where a column counts seconds


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured in one run, and on what."""

    format: int = FORMAT_VERSION
    taken: str  # ISO time
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str]
    model: dict[str, Any]
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    measures: tuple[TraceMeasure, ...] = ()

    @property
    def servers(self) -> list[str]:
        """The names of the servers, in the order in which they first ran."""
        return list(dict.fromkeys(measure.server for measure in self.measures))

    @property
    def traces(self) -> list[str]:
        """The names of the traces, in order."""
        return list(dict.fromkeys(measure.trace for measure in self.measures))

    def find(self, trace: str, server: str) -> TraceMeasure | None:
        """Return the measure of a trace on a server, or None."""
        for measure in self.measures:
            if (measure.trace, measure.server) == (trace, server):
                return measure
        return None

    def to_json(self) -> bytes:
        """Return the comparison as JSON, one line per request."""
        fields = msgspec.to_builtins(self) | {"measures": "@"}
        text = msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()
        measures = ",\n".join(_encode_measure(measure) for measure in self.measures)
        return text.replace('"@"', f"[\n{measures}\n]").encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> Comparison:
        """Read what `to_json` wrote. Raises BenchmarkFailed."""
        try:
            fields = msgspec.json.decode(text)
            fields["measures"] = [_decode_measure(measure) for measure in fields["measures"]]
            comparison = msgspec.convert(fields, cls)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise BenchmarkFailed(f"not the result of a comparison: {error}") from None
        if comparison.format != FORMAT_VERSION:
            raise BenchmarkFailed(
                f"the comparison has format {comparison.format}; this version reads "
                f"{FORMAT_VERSION}"
            )
        return comparison


def read_comparison(path: Path) -> Comparison:
    """Read the result of a comparison from a file. Raises BenchmarkFailed."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BenchmarkFailed(f"{path} cannot be read: {error.strerror}") from None
    return Comparison.from_json(text)


def join_measures(measures: Sequence[TraceMeasure]) -> list[TraceMeasure]:
    """Return one measure per server over all of its traces; nothing to join gives none."""
    joined = []
    for server in dict.fromkeys(measure.server for measure in measures):
        own = [measure for measure in measures if measure.server == server]
        if len(own) > 1:
            requests = tuple(request for measure in own for request in measure.requests)
            took_s = sum(measure.took_s for measure in own)
            joined.append(
                msgspec.structs.replace(
                    own[0], trace=ALL_TRACES, variant="", requests=requests, took_s=took_s, notes=()
                )
            )
    return joined


def describe_difference(ours: TraceMeasure, theirs: TraceMeasure) -> str:
    """Return one sentence: how two servers did on the same trace."""
    mine, other = sum_up(ours.requests), sum_up(theirs.requests)
    parts = []
    if mine.num_prefilled and other.num_prefilled:
        ratio = mine.num_prefilled / other.num_prefilled
        parts.append(f"{ratio:.3f} x the prefilled tokens")
    if mine.ttft_s and other.ttft_s and other.ttft_s.median and other.ttft_s.p95:
        median, p95 = mine.ttft_s.median / other.ttft_s.median, mine.ttft_s.p95 / other.ttft_s.p95
        parts.append(f"{median:.2f} x the median time to first token (p95: {p95:.2f} x)")
    if theirs.took_s:
        parts.append(f"{ours.took_s / theirs.took_s:.2f} x the time for all")
    comparison = ", ".join(parts) or "nothing in common to compare"
    return f"{ours.trace}: {ours.server} against {theirs.server}: {comparison}"


def _encode_measure(measure: TraceMeasure) -> str:
    fields = msgspec.to_builtins(msgspec.structs.replace(measure, requests=()))
    fields |= {"totals": msgspec.to_builtins(measure.totals), "columns": COLUMNS, "requests": "@"}
    rows = (msgspec.json.encode(_round_row(request)).decode() for request in measure.requests)
    text = msgspec.json.encode(fields).decode()
    return text.replace('"@"', "[\n" + ",\n".join(rows) + "\n]")


def _round_row(request: RequestMeasure) -> list[Any]:
    values: Iterable[Any] = msgspec.structs.astuple(request)
    return [round(value, NUM_DIGITS) if isinstance(value, float) else value for value in values]


def _decode_measure(fields: dict[str, Any]) -> TraceMeasure:
    columns = fields["columns"]
    requests = [dict(zip(columns, row, strict=True)) for row in fields["requests"]]
    return msgspec.convert(fields | {"requests": requests}, TraceMeasure)

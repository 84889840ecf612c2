"""What is measured: a record per request, sums and shares per trace, and their JSON.

Everything here is plain data and arithmetic. `replay` makes the records; the tables, plots and
comparisons read them. `None` means that the server did not report a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from milepost.errors import BenchmarkFailed
from milepost.traces.answer import Status

FORMAT_VERSION = 1


class RequestMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """What one request cost.

    With all numbers known: num_prompt_tokens == num_cached + num_prefilled, unless the request was
    cancelled; then num_prefilled is what was computed by the server's last word about it. What it
    computes until it notices that nobody listens is not seen; a retry may find it cached.
    """

    id: int
    session: str
    kind: str
    status: Status
    num_prompt_tokens: int | None = None
    num_cached: int | None = None
    num_prefilled: int | None = None
    num_oracle: int | None = None  # fewest tokens that an ideal cache would have prefilled
    num_prefilled_twice: int | None = None  # prefilled although computed before
    ttft_s: float | None = None
    prefill_ms: float | None = None
    num_decoded: int | None = None
    decode_tokens_per_s: float | None = None
    sent_s: float = 0.0  # since the start of the replay
    took_s: float = 0.0  # from sending to the end of the answer
    error: str = ""  # why it failed


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and 95th percentile of a number over the requests that have it."""

    median: float
    p95: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums and shares over the requests of a trace.

    A share or ratio counts only requests for which both of its numbers are known, and is None
    where there are none.
    """

    num_requests: int
    num_ok: int
    num_cancelled: int
    num_failed: int
    num_unreported: int  # answered, but without the number of prefilled tokens
    num_prompt_tokens: int
    num_cached: int
    num_prefilled: int
    num_oracle: int
    num_prefilled_twice: int
    num_decoded: int
    cached_share: float | None  # of the prompt tokens; without cancelled requests
    ratio_to_oracle: float | None  # prefilled / oracle
    prefilled_twice_share: float | None  # of the prefilled tokens
    prefill_ms: float
    ttft_s: Spread | None
    prefill_ms_each: Spread | None
    decode_tokens_per_s: Spread | None


class TraceMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of one trace on one server."""

    format: int = FORMAT_VERSION
    trace: str
    variant: str
    server: str
    is_closed_loop: bool = False
    concurrency: int = 1
    max_tokens: int = 0
    took_s: float = 0.0
    was_interrupted: bool = False
    notes: tuple[str, ...] = ()  # skipped requests, numbers that were not reported, ...
    requests: tuple[RequestMeasure, ...] = ()

    @property
    def totals(self) -> Totals:
        """The sums and shares over all requests."""
        return sum_up(self.requests)

    def to_json(self) -> bytes:
        """Return the measure as indented JSON, with its totals beside the requests."""
        fields = msgspec.to_builtins(self) | {"totals": msgspec.to_builtins(self.totals)}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes | str) -> TraceMeasure:
        """Read what `to_json` wrote. Raises BenchmarkFailed."""
        try:
            measure = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise BenchmarkFailed(f"not the result of a replay: {error}") from None
        if measure.format != FORMAT_VERSION:
            raise BenchmarkFailed(
                f"the result has format {measure.format}; this version reads {FORMAT_VERSION}"
            )
        return measure


def read_measure(path: Path) -> TraceMeasure:
    """Read the result of a replay from a file. Raises BenchmarkFailed."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BenchmarkFailed(f"{path} cannot be read: {error.strerror}") from None
    return TraceMeasure.from_json(text)


def sum_up(requests: Sequence[RequestMeasure]) -> Totals:
    """Return the totals of some requests; of none, they are zero and the shares None."""
    answered = [request for request in requests if request.status != "failed"]
    return Totals(
        num_requests=len(requests),
        num_ok=sum(request.status == "ok" for request in requests),
        num_cancelled=sum(request.status == "cancelled" for request in requests),
        num_failed=len(requests) - len(answered),
        num_unreported=sum(request.num_prefilled is None for request in answered),
        num_prompt_tokens=_sum(request.num_prompt_tokens for request in requests),
        num_cached=_sum(request.num_cached for request in requests),
        num_prefilled=_sum(request.num_prefilled for request in requests),
        num_oracle=_sum(request.num_oracle for request in requests),
        num_prefilled_twice=_sum(request.num_prefilled_twice for request in requests),
        num_decoded=_sum(request.num_decoded for request in requests),
        cached_share=_divide_sums(
            (r.num_cached, r.num_prompt_tokens) for r in requests if r.status == "ok"
        ),
        ratio_to_oracle=_divide_sums((r.num_prefilled, r.num_oracle) for r in requests),
        prefilled_twice_share=_divide_sums(
            (r.num_prefilled_twice, r.num_prefilled) for r in requests
        ),
        prefill_ms=sum(r.prefill_ms or 0.0 for r in requests),
        ttft_s=_spread(r.ttft_s for r in requests),
        prefill_ms_each=_spread(r.prefill_ms for r in requests),
        decode_tokens_per_s=_spread(r.decode_tokens_per_s for r in requests),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _sum(numbers: Iterable[int | None]) -> int:
    return sum(number for number in numbers if number is not None)


def _divide_sums(pairs: Iterable[tuple[int | None, int | None]]) -> float | None:
    part_sum = whole_sum = 0
    for part, whole in pairs:
        if part is not None and whole is not None:
            part_sum += part
            whole_sum += whole
    return part_sum / whole_sum if whole_sum else None


def _spread(numbers: Iterable[float | None]) -> Spread | None:
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    return Spread(median=percentile(known, 0.5), p95=percentile(known, 0.95))

"""What a conversation full of screenshots costs: tokens prefilled against the oracle, and encodes.

    python -m benchmarks.images [--kinds KIND ...] [--servers SERVER ...]

replays `workloads/screenshots.py` on both servers with the same small projector. How many images
were encoded only milepost tells.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.models import Kind

from benchmarks.models import write_benchmark_model, write_benchmark_projector
from benchmarks.report import Row, Run, Target, finish, make_kinds_parser, read_page_cache
from benchmarks.workloads.screenshots import make_screenshots
from milepost.bench.measures import RequestMeasure, TraceMeasure, sum_up
from milepost.bench.replay import Replay, ReplayOptions
from milepost.bench.servers import SERVERS, ServedModel
from milepost.client.media_tokens import media_parts
from milepost.client.server_client import ServerClient
from milepost.traces.trace import Trace

CTX_SIZE = 32768
PARALLEL = 1  # one session; more slots would only give upstream more places to look
MAX_RATIO = 1.05
SHOWN_KINDS = ("image", "repeated", "replaced", "restored")


@dataclass(frozen=True, slots=True)
class Measured:
    """One replay."""

    server: str
    measure: TraceMeasure
    num_encoded: int | None  # images; None: not told


def main() -> None:
    """Measure each memory kind once: the numbers do not vary."""
    parser = make_kinds_parser(__doc__ or "", repeats=1, kinds=("window", "hybrid"))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=tuple(SERVERS))
    arguments = parser.parse_args()
    trace = make_screenshots()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as name:
            served = write_served(kind, Path(name), arguments.threads)
            read_page_cache(Path(served.model))
            measured = [measure(served, server, trace, Path(name)) for server in arguments.servers]
            rows = [row for each in measured for row in make_rows(each, trace)]
            settings = {"kind": kind, "trace": trace.name, **served.describe()}
            run = Run(f"images-{kind}", Path(served.model), settings, arguments.results)
            finish(run, rows)


def write_served(kind: Kind, folder: Path, threads: int) -> ServedModel:
    """Write a model with its projector into a folder, and return what both servers are told."""
    model = write_benchmark_model(kind, folder)
    projector = write_benchmark_projector(kind, folder)
    return ServedModel(
        model=str(model),
        mmproj=str(projector),
        ctx_size=CTX_SIZE,
        parallel=PARALLEL,
        threads=threads,
    )


def measure(served: ServedModel, server: str, trace: Trace, folder: Path) -> Measured:
    """Replay the trace on a server of its own."""
    with SERVERS[server](served, folder) as process:
        found = asyncio.run(_replay(process.url, trace))
        return Measured(server, found, _count_encoded(process.url))


def make_rows(measured: Measured, trace: Trace) -> list[Row]:
    """Return the figures of one replay."""
    requests = measured.measure.requests
    target = Target("at most", MAX_RATIO) if measured.server == "milepost" else None
    rows = [_ratio(f"{measured.server}: prefilled / oracle", requests, target)]
    for kind in SHOWN_KINDS:
        some = [request for request in requests if request.kind == kind]
        rows.append(_ratio(f"{measured.server}: the same, {kind}", some))
    totals = sum_up(requests)
    rows.append(Row(f"{measured.server}: prefilled", "tokens", (float(totals.num_prefilled),)))
    if measured.num_encoded is not None:
        num_different = float(count_different_images(trace))
        encoded = (float(measured.num_encoded),)
        target = Target("at most", num_different)
        rows.append(Row(f"{measured.server}: images encoded", "", encoded, target))
    return rows


def count_different_images(trace: Trace) -> int:
    """Return how many different images a trace shows."""
    requests = trace.requests()
    return len({str(part) for each in requests for part in media_parts(each.messages)})


def _ratio(name: str, requests: Sequence[RequestMeasure], target: Target | None = None) -> Row:
    return Row(name, "x", (sum_up(requests).ratio_to_oracle or 0.0,), target)


async def _replay(url: str, trace: Trace) -> TraceMeasure:
    async with ServerClient(url) as client:
        await client.connect()
        return await Replay(trace, client, ReplayOptions(max_tokens=4), lambda _: None).run()


def _count_encoded(url: str) -> int | None:
    answer = httpx.get(f"{url}/cache", trust_env=False)
    return int(answer.json()["counters"]["media_encoded"]) if answer.is_success else None


if __name__ == "__main__":
    main()

"""How much disk a day of an agent takes, against the information in it.

    python -m benchmarks.disk_used [--kinds KIND ...] [--max-requests N]

The agent day is replayed on one server with a disk cache, restart at noon included. Then the files
are counted: their length, the states and cells in them, and the tokens of all histories once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.models import write_benchmark_model
from benchmarks.report import Row, Run, Target, finish, make_kinds_parser
from benchmarks.workloads.agent_day import make_agent_day
from milepost.bench.replay import Replay, ReplayOptions
from milepost.bench.servers import ServedModel, ServerProcess, make_milepost
from milepost.cache.disk.format import TOKEN_BYTES
from milepost.cache.disk.index import Index
from milepost.client.server_client import ServerClient
from milepost.traces.trace import Trace

CTX_SIZE = 40960
PARALLEL = 4
MAX_OVERHEAD = 1.1


def main() -> None:
    """Measure each memory kind once: the numbers do not vary."""
    parser = make_kinds_parser(__doc__ or "", repeats=1, kinds=("hybrid", "full"))
    parser.add_argument("--max-requests", type=int, help="default: all")
    arguments = parser.parse_args()
    trace = make_agent_day()
    options = ReplayOptions(max_tokens=4, max_requests=arguments.max_requests)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = write_benchmark_model(kind, folder)
            served = ServedModel(
                model=str(model), ctx_size=CTX_SIZE, parallel=PARALLEL, threads=arguments.threads
            )
            with make_milepost(served, folder) as server:
                asyncio.run(replay_day(server, trace, options))
            rows = count_files(folder)
            settings = {"kind": kind, "max_requests": options.max_requests, **served.describe()}
            finish(Run(f"disk_used-{kind}", model, settings, arguments.results), rows)


async def replay_day(server: ServerProcess, trace: Trace, options: ReplayOptions) -> None:
    """Replay a trace on a server."""
    async with ServerClient(server.url) as client:
        await client.connect()
        options = dataclasses.replace(options, restart=server.restart)
        await Replay(trace, client, options, lambda progress: None).run()


def count_files(folder: Path) -> list[Row]:
    """Return what lies below a folder, and what of it is information."""
    lengths = [path.stat().st_size for path in folder.rglob("blobs/*/*")]
    payloads, num_tokens = 0, 0
    for num_bytes, length in _read_indices(folder):
        payloads += num_bytes
        num_tokens += length
    files = Row("files", "MB", (sum(lengths) / 1e6,))
    states = Row("states and cells in them", "MB", (payloads / 1e6,))
    tokens = Row("tokens of all histories, once", "MB", (num_tokens * TOKEN_BYTES / 1e6,))
    overhead = sum(lengths) / (payloads + num_tokens * TOKEN_BYTES)
    target = Target("at most", MAX_OVERHEAD)
    number = Row("number of files", "", (float(len(lengths)),))
    return [number, files, states, tokens, Row("files / information", "x", (overhead,), target)]


def _read_indices(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the bytes of payloads and the number of tokens of each index."""
    for path in folder.rglob("index.sqlite"):
        index = Index.open(path)
        try:
            forest = index.load()
        finally:
            index.close()
        yield sum(blob.num_bytes for blob in forest.blobs), forest.runs.num_tokens


if __name__ == "__main__":
    main()

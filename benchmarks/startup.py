"""Seconds from start to the first healthy answer, and the front end's memory.

    python -m benchmarks.startup [--repeats N]

The model file is in the page cache. The memory is the resident set of the front-end process alone,
right after the start and after one answered chat request; the engine is a process of its own.
"""

from __future__ import annotations

import psutil

from benchmarks.report import (
    Row,
    Run,
    Target,
    finish,
    make_parser,
    parse_arguments,
    read_page_cache,
)
from benchmarks.servers import ServedCase, describe_case, milepost_process

CTX_SIZE = 4096
PARALLEL = 1
MAX_START_S = 3.0
MAX_RESIDENT_MB = 200.0
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}


def main() -> None:
    """Start the server several times and report time and memory."""
    arguments = parse_arguments(make_parser(__doc__ or "", repeats=7))
    case = ServedCase(arguments.model, CTX_SIZE, PARALLEL, arguments.threads)
    read_page_cache(arguments.model)
    measure_start(case)  # warms the page cache for Python's own files
    starts, idle_sizes, used_sizes = zip(
        *(measure_start(case) for _ in range(arguments.repeats)), strict=True
    )
    rows = [
        Row("start to healthy", "s", starts, Target("at most", MAX_START_S)),
        Row("front end after start", "MB", idle_sizes, Target("at most", MAX_RESIDENT_MB)),
        Row("front end after a chat", "MB", used_sizes, Target("at most", MAX_RESIDENT_MB)),
    ]
    run = Run("startup", arguments.model, describe_case(case), arguments.results)
    finish(run, rows)


def measure_start(case: ServedCase) -> tuple[float, float, float]:
    """Return seconds to healthy, and the front end's megabytes before and after a chat."""
    with milepost_process(case) as server:
        front_end = psutil.Process(server.process.pid)
        idle_mb = front_end.memory_info().rss / 1e6
        server.http.post("/v1/chat/completions", json=CHAT).raise_for_status()
        return server.start_s, idle_mb, front_end.memory_info().rss / 1e6


if __name__ == "__main__":
    main()

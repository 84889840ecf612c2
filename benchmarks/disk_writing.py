"""What writing conversations to disk takes from an answer that is being decoded.

    python -m benchmarks.disk_writing [--kinds KIND ...] [--repeats N] [--tokens N] [--answer N]

A long conversation is prefilled, and at once another request decodes a long answer. With
`--cache-disk-sync turn`, the hardest case, the first one is written meanwhile; without the disk
cache there is nothing to write. A second server without it shows how far two equal servers are
apart. All three run from beginning to end and take turns, each with the same new conversation;
costs are taken repeat by repeat. The rate is the engine's own.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.processes import RunningServer

from benchmarks.models import write_benchmark_model
from benchmarks.report import (
    Row,
    Run,
    Target,
    compare_rows,
    finish,
    make_kinds_parser,
    read_page_cache,
)
from benchmarks.servers import ServedCase, ask, describe_case, milepost_process, read_cache
from benchmarks.turns import measure_in_turns
from benchmarks.workloads.long_conversation import make_body, make_conversation

CTX_SIZE = 32768
PARALLEL = 2
NUM_MESSAGES = 30
MAX_COST_PERCENT = 2.0
NUM_WARM_UPS = 1
SETTLED_S = 0.5  # nothing was written for so long: all is written; arbitrary
VARIANTS: dict[str, tuple[str, ...]] = {
    "no disk": ("--no-cache-disk",),
    "no disk, another server": ("--no-cache-disk",),
    "written meanwhile": ("--cache-on-disk", "--cache-disk-sync", "turn"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One long answer."""

    tokens_per_s: float
    written_mb: float  # from the end of the conversation before it to its own end


def main() -> None:
    """Measure each memory kind and report what writing costs."""
    parser = make_kinds_parser(__doc__ or "", repeats=9, kinds=("hybrid",))
    parser.add_argument("--tokens", type=int, default=8000, help="about; default: %(default)s")
    parser.add_argument("--answer", type=int, default=768, help="tokens; default: %(default)s")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            case = ServedCase(model, CTX_SIZE, PARALLEL, arguments.threads)
            sizes = (arguments.tokens, arguments.answer)
            rows = measure_kind(case, sizes, arguments.repeats)
            settings = {
                "kind": kind,
                "tokens": arguments.tokens,
                "answer": arguments.answer,
                **describe_case(case),
            }
            finish(Run(f"disk_writing-{kind}", model, settings, arguments.results), rows)


def measure_kind(case: ServedCase, sizes: tuple[int, int], repeats: int) -> list[Row]:
    """Return the rates of all variants, and what writing costs."""
    with contextlib.ExitStack() as stack:
        servers: dict[str, RunningServer] = {}
        for name, flags in VARIANTS.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            process = milepost_process(case, *flags, "--cache-dir", folder)
            servers[name] = stack.enter_context(process)
        samples = measure_in_turns(
            tuple(servers),
            NUM_WARM_UPS + repeats,
            lambda name, repeat: measure_answer(servers[name], f"harbour {repeat}", sizes),
        )
    kept = {name: each[NUM_WARM_UPS:] for name, each in samples.items()}
    rows = [
        Row(name, "tokens/s", tuple(sample.tokens_per_s for sample in each))
        for name, each in kept.items()
    ]
    bare, again, writing = rows
    written = tuple(sample.written_mb for sample in kept[writing.name])
    return [
        *rows,
        Row("written during an answer", "MB", written),
        compare_rows("two servers without a disk", bare, again),
        compare_rows("cost of writing", bare, writing, Target("at most", MAX_COST_PERCENT)),
    ]


def measure_answer(server: RunningServer, name: str, sizes: tuple[int, int]) -> Sample:
    """Measure an answer that follows a new long conversation at once; `sizes` in tokens."""
    num_tokens, num_decoded = sizes
    ask(server, make_body(make_conversation(name, NUM_MESSAGES, num_tokens), 1))
    before = read_written_bytes(server)
    short = [{"role": "user", "content": f"Count the boats in the {name}."}]
    timings = ask(server, make_body(short, num_decoded))
    written_mb = (read_written_bytes(server) - before) / 1e6
    wait_until_written(server)
    return Sample(timings["predicted_per_second"], written_mb)


def read_written_bytes(server: RunningServer) -> int:
    """Return what was written since the server was started."""
    return int(read_cache(server)["disk"]["written_bytes"])


def wait_until_written(server: RunningServer) -> None:
    """Wait until nothing more is written: the next server is to be alone."""
    written_bytes = -1
    while (now_bytes := read_written_bytes(server)) != written_bytes:
        written_bytes = now_bytes
        time.sleep(SETTLED_S)


if __name__ == "__main__":
    main()

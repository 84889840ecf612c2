"""What writing conversations to disk takes from an answer that is being decoded.

    python -m benchmarks.disk_writing [--kinds KIND ...] [--repeats N] [--tokens N]

One request is prefilled and answered, then at once another one decodes. With `--cache-disk-sync
turn` the first one is written meanwhile, with `idle`, the default, it is not, and without the disk
cache there is nothing to write. The three take turns; the rate is the engine's own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

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
from benchmarks.servers import ServedCase, ask, describe_case, milepost_process
from benchmarks.workloads.long_conversation import make_body, make_conversation

CTX_SIZE = 40960
PARALLEL = 4
MAX_COST_PERCENT = 2.0
NUM_DECODED = 512
VARIANTS: dict[str, tuple[str, ...]] = {
    "no disk": ("--no-cache-disk",),
    "idle": ("--cache-on-disk", "--cache-disk-sync", "idle"),
    "turn": ("--cache-on-disk", "--cache-disk-sync", "turn"),
}


def main() -> None:
    """Measure each memory kind and report what writing costs."""
    parser = make_kinds_parser(__doc__ or "", repeats=5, kinds=("hybrid", "full"))
    parser.add_argument("--tokens", type=int, default=20_000, help="about; default: %(default)s")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            case = ServedCase(model, CTX_SIZE, PARALLEL, arguments.threads)
            rows = measure_kind(case, arguments.tokens, arguments.repeats)
            settings = {"kind": kind, "tokens": arguments.tokens, **describe_case(case)}
            finish(Run(f"disk_writing-{kind}", model, settings, arguments.results), rows)


def measure_kind(case: ServedCase, num_tokens: int, repeats: int) -> list[Row]:
    """Return the rates of all variants, and what the disk costs."""
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for repeat in range(repeats):
        names = list(VARIANTS)[repeat % len(VARIANTS) :] + list(VARIANTS)[: repeat % len(VARIANTS)]
        for name in names:
            rates[name].append(measure_rate(case, VARIANTS[name], num_tokens))
    rows = [Row(name, "tokens/s", tuple(values)) for name, values in rates.items()]
    bare, idle, turn = rows
    target = Target("at most", MAX_COST_PERCENT)
    return [
        *rows,
        compare_rows("cost of idle, the default", bare, idle, target),
        compare_rows("cost of turn", bare, turn, target),
    ]


def measure_rate(case: ServedCase, flags: tuple[str, ...], num_tokens: int) -> float:
    """Return the tokens per second of an answer that follows a long one at once."""
    with (
        tempfile.TemporaryDirectory() as folder,
        milepost_process(case, *flags, "--cache-dir", folder) as server,
    ):
        ask(server, make_body([{"role": "user", "content": "Good morning."}], 4))
        ask(server, make_body(make_conversation("harbour", 60, num_tokens), 1))
        short = [{"role": "user", "content": "Count the boats in the harbour."}]
        timings = ask(server, make_body(short, NUM_DECODED))
    return timings["predicted_per_second"]


if __name__ == "__main__":
    main()

"""What keeping states and cells costs a cold prefill of a long conversation.

    python -m benchmarks.checkpoint_cost [--kinds KIND ...] [--repeats N] [--tokens N]

The same conversation is prefilled with states and cells kept as by default, without states
(`--ctx-checkpoints 0`) and with nothing kept at all (`--cache-ram 0` too). Each prefill is a fresh
server with one short warm-up; the three take turns. The time is the engine's own `prompt_ms`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

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
from benchmarks.turns import measure_in_turns
from benchmarks.workloads.long_conversation import make_body, make_conversation

CTX_SIZE = 40960
PARALLEL = 4
MAX_COST_PERCENT = 2.0
VARIANTS: dict[str, tuple[str, ...]] = {
    "by default": (),
    "no states": ("--ctx-checkpoints", "0"),
    # Without the second flag the prefill would be cut for states that are then not kept.
    "nothing kept": ("--cache-ram", "0", "--ctx-checkpoints", "0"),
}


def main() -> None:
    """Measure each memory kind and report what is paid for keeping."""
    parser = make_kinds_parser(__doc__ or "", repeats=5, kinds=("hybrid", "window", "recurrent"))
    parser.add_argument("--messages", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=20_000, help="about; default: %(default)s")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            case = ServedCase(model, CTX_SIZE, PARALLEL, arguments.threads)
            conversation = make_conversation("harbour", arguments.messages, arguments.tokens)
            rows, num_tokens = measure_kind(case, make_body(conversation, 1), arguments.repeats)
            settings = {"tokens": num_tokens, "messages": len(conversation), **describe_case(case)}
            finish(
                Run(
                    f"checkpoint_cost-{kind}", model, {"kind": kind, **settings}, arguments.results
                ),
                rows,
            )


def measure_kind(case: ServedCase, body: dict[str, Any], repeats: int) -> tuple[list[Row], int]:
    """Return the times of all variants and what each costs over the last; and the tokens."""
    found = measure_in_turns(
        tuple(VARIANTS), repeats, lambda name, _: measure_prefill(case, VARIANTS[name], body)
    )
    rows = [Row(name, "s", tuple(each[0] for each in times)) for name, times in found.items()]
    _, num_tokens = found["by default"][-1]
    default, stateless, bare = rows
    target = Target("at most", MAX_COST_PERCENT)
    return [
        *rows,
        compare_rows("states and cells", default, bare, target),
        compare_rows("of that, states", default, stateless),
    ], num_tokens


def measure_prefill(
    case: ServedCase, flags: tuple[str, ...], body: dict[str, Any]
) -> tuple[float, int]:
    """Return the seconds of a cold prefill in a fresh server, and how many tokens it had."""
    with milepost_process(case, *flags) as server:
        ask(server, make_body([{"role": "user", "content": "Good morning."}], 4))
        timings = ask(server, body)
    return timings["prompt_ms"] / 1000, int(timings["prompt_n"])


if __name__ == "__main__":
    main()

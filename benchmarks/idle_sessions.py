"""Decoding of one conversation while the server knows many others.

    python -m benchmarks.idle_sessions [--kinds KIND ...] [--repeats N] [--idle N] [--tokens N]

Decode: tokens per second of one conversation alone, and with 20 idle conversations that the server
has answered before; what is known is dropped (`DELETE /cache`) between the two. Switch: three
conversations take turns at every request, against one that goes on by itself; what is copied, and
the time to the first token. All of it happens in one server per kind, in turns. Times are those of
the engine.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.processes import RunningServer

from benchmarks.models import write_benchmark_model
from benchmarks.report import (
    Row,
    Run,
    Target,
    divide_rows,
    finish,
    make_kinds_parser,
    read_page_cache,
)
from benchmarks.servers import (
    TIMEOUT_S,
    ServedCase,
    ask,
    describe_case,
    milepost_process,
    read_cache,
)
from benchmarks.turns import measure_in_turns
from benchmarks.workloads.long_conversation import make_body, make_conversation
from milepost.traces.trace import Message

PARALLEL = 4
NUM_MESSAGES = 16  # of a conversation
NUM_IDLE_REPLY_TOKENS = 32
NUM_SWITCHING = 3
NUM_SWITCHES = 12
NUM_SWITCH_REPLY_TOKENS = 8  # short, as those of tool calls are
MIN_RATE_SHARE = 0.97  # of the decode rate alone


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked; from the command line."""

    num_idle: int
    num_idle_tokens: int  # of each idle conversation
    num_decoded: int


def main() -> None:
    """Measure each memory kind."""
    parser = make_kinds_parser(__doc__ or "", repeats=5, kinds=("hybrid", "full"))
    parser.add_argument("--idle", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--idle-tokens", type=int, default=4000, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=256, help="decoded; default: %(default)s")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.idle, arguments.idle_tokens, arguments.tokens)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            # What all slots hold fits into the context: whoever leaves it is not forced to.
            ctx_size = 2 * PARALLEL * sizes.num_idle_tokens
            case = ServedCase(model, ctx_size, PARALLEL, arguments.threads)
            settings = {
                "kind": kind,
                "idle": sizes.num_idle,
                "idle_tokens": sizes.num_idle_tokens,
                "tokens": sizes.num_decoded,
                **describe_case(case),
            }
            with milepost_process(case) as server:
                rows = measure_decode(server, sizes, arguments.repeats)
                rows += measure_switches(server, sizes, arguments.repeats)
            finish(Run(f"idle_sessions-{kind}", model, settings, arguments.results), rows)


def measure_decode(server: RunningServer, sizes: Sizes, repeats: int) -> list[Row]:
    """Return the rates of one conversation alone and beside idle ones, and their ratios."""
    rates = measure_in_turns(
        (0, sizes.num_idle), 1 + repeats, lambda num_idle, _: measure_rate(server, sizes, num_idle)
    )
    alone, beside = (tuple(values[1:]) for values in rates.values())  # the first is a warm-up
    above = Row(f"decode, {sizes.num_idle} idle", "tokens/s", beside)
    below = Row("decode, alone", "tokens/s", alone)
    target = Target("at least", MIN_RATE_SHARE)
    return [below, above, divide_rows("idle / alone", above, below, target)]


def measure_rate(server: RunningServer, sizes: Sizes, num_idle: int) -> float:
    """Return the decode rate of a conversation that comes after so many others."""
    forget(server)
    for number in range(num_idle):
        ask(server, make_body(talk(f"idle {number}", sizes), NUM_IDLE_REPLY_TOKENS))
    timings = ask(server, make_body(talk("active", sizes), sizes.num_decoded))
    return 1000 * (timings["predicted_n"] - 1) / timings["predicted_ms"]


def measure_switches(server: RunningServer, sizes: Sizes, repeats: int) -> list[Row]:
    """Return what switching between conversations costs, and going on with one."""
    found = measure_in_turns(
        (1, NUM_SWITCHING), repeats, lambda count, _: take_turns(server, sizes, count)
    )
    alone, switching = (
        Row(f"first token, {count} in turn", "ms", tuple(wait_ms for wait_ms, _ in each))
        for count, each in found.items()
    )
    copied = [tuple(megabytes for _, megabytes in each) for each in found.values()]
    return [
        alone,
        switching,
        divide_rows(f"{NUM_SWITCHING} in turn / 1", switching, alone),
        Row("restored a request, 1", "MB", copied[0]),
        Row(f"restored a request, {NUM_SWITCHING} in turn", "MB", copied[1]),
    ]


def take_turns(server: RunningServer, sizes: Sizes, count: int) -> tuple[float, float]:
    """Let so many conversations take turns; return the median wait and the MB per request."""
    forget(server)
    conversations = [talk(f"switching {number}", sizes) for number in range(count)]
    for conversation in conversations:
        ask(server, make_body(conversation, NUM_SWITCH_REPLY_TOKENS))
    before = read_restored_bytes(server)
    waits = []
    for number in range(NUM_SWITCHES):
        conversation = conversations[number % count]
        conversation.append({"role": "assistant", "content": "Done."})
        conversation.append({"role": "user", "content": f"Go on with step {number}."})
        timings = ask(server, make_body(conversation, NUM_SWITCH_REPLY_TOKENS))
        waits.append(timings["prompt_ms"])
    num_bytes = read_restored_bytes(server) - before
    return statistics.median(waits), num_bytes / NUM_SWITCHES / 1e6


def talk(name: str, sizes: Sizes) -> list[Message]:
    """Return a conversation that no other name shares."""
    return make_conversation(name, NUM_MESSAGES, sizes.num_idle_tokens)


def forget(server: RunningServer) -> None:
    """Let the server forget all that it knows."""
    server.http.delete("/cache", timeout=TIMEOUT_S).raise_for_status()


def read_restored_bytes(server: RunningServer) -> int:
    """Return how many bytes were copied into the context since the server was started."""
    return int(read_cache(server)["counters"]["restored_bytes"])


if __name__ == "__main__":
    main()

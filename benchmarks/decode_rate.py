"""Decoded tokens per second for 1 and 4 streams, against upstream's server.

    python -m benchmarks.decode_rate [--repeats N] [--tokens N]

Each case is a fresh server with one warm-up answer; the servers take turns, never side by side.
The rate counts from the first streamed text of any stream to the last text of all, at the client.
Sampling is llama-server's default with a fixed seed; the end-of-turn token is ignored.
"""

from __future__ import annotations

from typing import Any

from benchmarks.report import (
    Row,
    Run,
    Target,
    divide_rows,
    finish,
    make_parser,
    parse_arguments,
    read_page_cache,
)
from benchmarks.servers import SERVERS, ServedCase, describe_case
from benchmarks.streaming import read_stream, read_streams

NUM_STREAMS = (1, 4)
CTX_SIZE = 8192
PARALLEL = 4
WARM_UP_TOKENS = 32
QUESTION = "Write a long story about a lighthouse keeper, number {number}."


def main() -> None:
    """Measure both servers in turn and report the ratios."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--tokens", type=int, default=256, help="per stream; default: %(default)s")
    arguments = parse_arguments(parser)
    case = ServedCase(arguments.model, CTX_SIZE, PARALLEL, arguments.threads)
    read_page_cache(arguments.model)
    rows: list[Row] = []
    for num_streams in NUM_STREAMS:
        rows += measure_servers(case, num_streams, arguments.tokens, arguments.repeats)
    settings = {"tokens": arguments.tokens, **describe_case(case)}
    finish(Run("decode_rate", arguments.model, settings, arguments.results), rows)


def measure_servers(
    case: ServedCase, num_streams: int, num_tokens: int, repeats: int
) -> tuple[Row, Row, Row]:
    """Return the rates of both servers, and their ratio in each repeat."""
    rates: dict[str, list[float]] = {name: [] for name in SERVERS}
    for repeat in range(repeats):
        # Whoever goes first finds another machine than who goes second: they swap.
        names = list(SERVERS) if repeat % 2 == 0 else list(reversed(SERVERS))
        for name in names:
            with SERVERS[name](case) as url:
                rates[name].append(measure_rate(url, num_streams, num_tokens))
    plural = "stream" if num_streams == 1 else "streams"
    ours, theirs = (
        Row(f"{name}, {num_streams} {plural}", "tokens/s", tuple(values))
        for name, values in rates.items()
    )
    ratio = f"milepost / upstream, {num_streams} {plural}"
    return ours, theirs, divide_rows(ratio, ours, theirs, Target("at least", 1.0))


def measure_rate(url: str, num_streams: int, num_tokens: int) -> float:
    """Return the decoded tokens per second of all streams together, after a warm-up."""
    read_stream(url, make_body(0, WARM_UP_TOKENS))
    bodies = [make_body(1 + number, num_tokens) for number in range(num_streams)]
    times = read_streams(url, bodies)
    elapsed = max(stream.last for stream in times) - min(stream.first for stream in times)
    return sum(stream.num_tokens - 1 for stream in times) / elapsed


def make_body(number: int, num_tokens: int) -> dict[str, Any]:
    """Return a request that decodes exactly that many tokens."""
    return {
        "messages": [{"role": "user", "content": QUESTION.format(number=number)}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "seed": number,
    }


if __name__ == "__main__":
    main()

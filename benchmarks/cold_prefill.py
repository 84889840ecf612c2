"""Prefill of a long prompt through the engine, against a bare `llama_decode` loop.

    python -m benchmarks.cold_prefill [--repeats N] [--tokens N]

Each case is a fresh process with one warm-up prefill of another prompt; the two take turns. The
engine's time is its own `prompt_ms`; the client's time to the answer is reported beside it, with
HTTP, both processes and the socket between them.
"""

from __future__ import annotations

import time

from tests.processes import RunningServer

from benchmarks.raw_prefill import RawPrefill, draw_tokens, measure_raw_prefill
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
from benchmarks.servers import ServedCase, describe_case, milepost_process

CTX_SIZE = 8192
PARALLEL = 4


def main() -> None:
    """Measure engine and bare loop in turn and report the ratio of their speeds."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--tokens", type=int, default=4096, help="default: %(default)s")
    arguments = parse_arguments(parser)
    case = ServedCase(arguments.model, CTX_SIZE, PARALLEL, arguments.threads)
    read_page_cache(arguments.model)
    settings = {"tokens": arguments.tokens, **describe_case(case)}
    run = Run("cold_prefill", arguments.model, settings, arguments.results)
    finish(run, measure_prefills(case, arguments.tokens, arguments.repeats))


def measure_prefills(case: ServedCase, num_tokens: int, repeats: int) -> list[Row]:
    """Return the speeds of the bare loop, of the engine and as the client sees it."""
    raw_rates: list[float] = []
    engine_rates: list[float] = []
    client_rates: list[float] = []
    for _ in range(repeats):
        raw_rates.append(num_tokens / measure_raw_prefill(make_raw_case(case, num_tokens)))
        with milepost_process(case) as server:
            engine_s, client_s = measure_served_prefill(server, case.ubatch_size, num_tokens)
        engine_rates.append(num_tokens / engine_s)
        client_rates.append(num_tokens / client_s)
    raw = Row("bare llama_decode", "tokens/s", tuple(raw_rates))
    engine = Row("engine", "tokens/s", tuple(engine_rates))
    client = Row("seen by the client", "tokens/s", tuple(client_rates))
    return [
        raw,
        engine,
        client,
        divide_rows("engine / bare", engine, raw, Target("at least", 0.98)),
    ]


def make_raw_case(case: ServedCase, num_tokens: int) -> RawPrefill:
    """Return the bare loop's settings for a server's."""
    return RawPrefill(
        model=str(case.model),
        num_tokens=num_tokens,
        ctx_size=case.ctx_size,
        parallel=case.parallel,
        threads=case.threads,
        batch_size=case.batch_size,
        ubatch_size=case.ubatch_size,
    )


def measure_served_prefill(
    server: RunningServer, num_warm_up_tokens: int, num_tokens: int
) -> tuple[float, float]:
    """Return the seconds of a prefill by the engine's clock and by the client's."""
    _complete(server, draw_tokens(num_warm_up_tokens, seed=0).tolist())
    prompt = draw_tokens(num_tokens, seed=1).tolist()
    started = time.perf_counter()
    timings = _complete(server, prompt)
    client_s = time.perf_counter() - started
    if timings["prompt_n"] != num_tokens:
        raise RuntimeError(f"{timings['prompt_n']} tokens were computed instead of {num_tokens}")
    return timings["prompt_ms"] / 1000, client_s


def _complete(server: RunningServer, prompt: list[int]) -> dict[str, float]:
    body = {"prompt": prompt, "max_tokens": 1}
    response = server.http.post("/v1/completions", json=body, timeout=600.0)
    response.raise_for_status()
    timings: dict[str, float] = response.json()["timings"]
    return timings


if __name__ == "__main__":
    main()

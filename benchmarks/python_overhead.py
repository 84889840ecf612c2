"""Python time per decode step of one stream: the wall time of a step less `llama_decode`.

    python -m benchmarks.python_overhead [--repeats N] [--tokens N]

A real engine process (`timed_engine.py`) decodes for this script, which talks to it over the
socket as the front end does. A step lasts from the beginning of one `llama_decode` to that of the
next; each repeat is a fresh process and counts with the median of its steps. The samplers are
native code too; their share is shown apart.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.raw_prefill import draw_tokens
from benchmarks.report import (
    Row,
    Run,
    Target,
    finish,
    make_parser,
    parse_arguments,
    read_page_cache,
)
from milepost.config import EngineSettings, LogSettings
from milepost.protocol.framing import encode_frame, engine_reader
from milepost.protocol.messages import (
    Failed,
    Finished,
    FromEngine,
    Generate,
    GenerationParams,
    Hello,
    Load,
    LoadFailed,
    PromptInput,
    Ready,
    Shutdown,
    encode_tokens,
)
from milepost.protocol.sampling import SamplingParams

CTX_SIZE = 4096
NUM_PROMPT_TOKENS = 64
NUM_WARM_UP_TOKENS = 32
MAX_OVERHEAD_MS = 0.3
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "default sampling": SamplingParams(seed=1, ignore_eos=True),
}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians over the steps of one repeat."""

    step_ms: float
    outside_decode_ms: float
    samplers_ms: float  # a part of outside_decode_ms


def main() -> None:
    """Measure greedy and default sampling, and report the time outside of the library."""
    parser = make_parser(__doc__ or "", repeats=5)
    parser.add_argument("--tokens", type=int, default=256, help="default: %(default)s")
    arguments = parse_arguments(parser)
    read_page_cache(arguments.model)
    engine = EngineSettings(
        cache_on_disk=False,
        model_path=str(arguments.model),
        ctx_size=CTX_SIZE,
        parallel=1,
        threads=arguments.threads,
    )
    rows: list[Row] = []
    for name, sampling in SAMPLINGS.items():
        times = [
            measure_steps(engine, sampling, arguments.tokens) for _ in range(arguments.repeats)
        ]
        rows += make_rows(name, times)
    settings = {"tokens": arguments.tokens, "ctx_size": CTX_SIZE, "threads": arguments.threads}
    finish(Run("python_overhead", arguments.model, settings, arguments.results), rows)


def make_rows(name: str, times: list[StepTimes]) -> list[Row]:
    """Return the rows of one kind of sampling."""
    target = Target("at most", MAX_OVERHEAD_MS)
    outside = tuple(time.outside_decode_ms for time in times)
    samplers = tuple(time.samplers_ms for time in times)
    python = tuple(a - b for a, b in zip(outside, samplers, strict=True))
    return [
        Row(f"{name}: step", "ms", tuple(time.step_ms for time in times)),
        Row(f"{name}: outside llama_decode", "ms", outside),
        Row(f"{name}: of that, native samplers", "ms", samplers),
        Row(f"{name}: of that, Python", "ms", python, target),
    ]


def measure_steps(engine: EngineSettings, sampling: SamplingParams, num_tokens: int) -> StepTimes:
    """Return the times of a fresh engine that decodes so many tokens, after a warm-up."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "benchmarks.timed_engine", str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        theirs.close()
        with contextlib.closing(_receive(ours)) as messages:
            _load(ours, messages, engine)
            for request_id, max_tokens in enumerate((NUM_WARM_UP_TOKENS, num_tokens)):
                _generate(ours, messages, make_request(request_id, max_tokens, sampling))
            ours.sendall(encode_frame(Shutdown()))
        printed, _ = process.communicate()
    return summarise(json.loads(printed)[-(num_tokens - 1) :])


def make_request(request_id: int, max_tokens: int, sampling: SamplingParams) -> Generate:
    """Return a request with a prompt of its own, so that nothing is reused."""
    prompt = draw_tokens(NUM_PROMPT_TOKENS, seed=request_id)
    return Generate(
        request_id=request_id,
        prompt=PromptInput(tokens=encode_tokens(prompt)),
        params=GenerationParams(sampling=sampling, max_tokens=max_tokens),
    )


def summarise(steps: list[tuple[float, float, float]]) -> StepTimes:
    """Return the medians of steps, each of (begin of decode, its end, seconds in samplers)."""
    pairs = list(zip(steps, steps[1:], strict=False))
    return StepTimes(
        step_ms=1000 * statistics.median(following[0] - step[0] for step, following in pairs),
        outside_decode_ms=1000
        * statistics.median(following[0] - step[1] for step, following in pairs),
        samplers_ms=1000 * statistics.median(step[2] for step in steps),
    )


def _load(sock: socket.socket, messages: Iterator[FromEngine], engine: EngineSettings) -> None:
    for message in messages:
        match message:
            case Hello():
                sock.sendall(encode_frame(_make_load(engine)))
            case LoadFailed():
                raise RuntimeError(f"{Path(engine.model_path).name}: {message.failure.message}")
            case Ready():
                return
    raise RuntimeError("the engine ended while it loaded the model")


def _make_load(engine: EngineSettings) -> Load:
    return Load(
        settings=msgspec.msgpack.encode(engine), log_settings=msgspec.msgpack.encode(LogSettings())
    )


def _generate(sock: socket.socket, messages: Iterator[FromEngine], request: Generate) -> None:
    sock.sendall(encode_frame(request))
    for message in messages:
        match message:
            case Failed():
                raise RuntimeError(message.failure.message)
            case Finished():
                return
    raise RuntimeError("the engine ended while it decoded")


def _receive(sock: socket.socket) -> Generator[FromEngine, None, None]:
    reader = engine_reader()
    while data := sock.recv(1 << 16):
        yield from reader.feed(data)


if __name__ == "__main__":
    main()

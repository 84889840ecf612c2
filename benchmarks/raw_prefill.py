"""The bare minimum of a prefill: a loop of `llama_decode` calls and nothing else.

    python -m benchmarks.raw_prefill '{"model": "model.gguf", "num_tokens": 4096, ...}'

prints the seconds of one prefill after a warm-up. `measure_raw_prefill` runs that as a child.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from milepost import libllama


@dataclass(frozen=True, slots=True)
class RawPrefill:
    """One prefill; the meanings are those of the servers' flags."""

    model: str
    num_tokens: int
    ctx_size: int
    parallel: int
    threads: int
    batch_size: int
    ubatch_size: int


def draw_tokens(num_tokens: int, seed: int) -> npt.NDArray[np.int32]:
    """Return random token ids that every vocabulary of the benchmarks has as plain text."""
    # 33..255: above the control tokens that vocabularies begin with.
    return np.random.default_rng(seed).integers(33, 256, num_tokens, np.int32)


def measure_raw_prefill(case: RawPrefill) -> float:
    """Return the seconds of one prefill in a process of its own."""
    encoded = json.dumps(dataclasses.asdict(case))
    command = [sys.executable, "-m", "benchmarks.raw_prefill", encoded]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def _measure(case: RawPrefill) -> float:
    library = libllama.open_library()
    params = libllama.ContextParams(
        num_context_tokens=case.ctx_size,
        num_batch_tokens=case.batch_size,
        num_ubatch_tokens=case.ubatch_size,
        num_sequences=case.parallel,
        num_threads=case.threads,
        num_threads_batch=case.threads,
    )
    with (
        libllama.Model(library, Path(case.model), libllama.ModelParams()) as model,
        libllama.Context(model, params) as context,
    ):
        batch = libllama.Batch(library, case.batch_size)
        _prefill(context, batch, draw_tokens(case.ubatch_size, seed=0))
        context.clear_sequences()
        tokens = draw_tokens(case.num_tokens, seed=1)
        started = time.perf_counter()
        _prefill(context, batch, tokens)
        return time.perf_counter() - started


def _prefill(
    context: libllama.Context, batch: libllama.Batch, tokens: npt.NDArray[np.int32]
) -> None:
    row = 0
    for start in range(0, len(tokens), batch.capacity):
        part = tokens[start : start + batch.capacity]
        batch.clear_rows()
        is_last = start + len(part) == len(tokens)
        row = batch.add_tokens(part, start, 0, wants_last=is_last)
        context.decode(batch)
    context.logits(row)  # waits for the device, where there is one


if __name__ == "__main__":
    print(_measure(RawPrefill(**json.loads(sys.argv[1]))))

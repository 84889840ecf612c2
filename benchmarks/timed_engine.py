"""The real engine process with a clock around its calls into the library.

    python -m benchmarks.timed_engine FD

runs `milepost.engine.main` on a socket and at its end prints, as JSON, when each `llama_decode`
of a single token began and ended, and how long the samplers took after it. The clock itself costs
less than a microsecond per call.
"""

from __future__ import annotations

import json
import sys
import time

from milepost.engine.main import main as run_engine
from milepost.libllama import Batch, Context, SamplerChain

_decode = Context.decode
_sample = SamplerChain.sample

# (begin of decode, end of decode, seconds in samplers after it), of batches of one token
_steps: list[tuple[float, float, float]] = []


def decode_timed(self: Context, batch: Batch) -> None:
    """Decode, and note begin and end."""
    began = time.perf_counter()
    _decode(self, batch)
    ended = time.perf_counter()
    if batch.num_tokens == 1:
        _steps.append((began, ended, 0.0))


def sample_timed(self: SamplerChain, context: Context, row: int) -> int:
    """Sample, and add the time to the step."""
    began = time.perf_counter()
    token = _sample(self, context, row)
    elapsed = time.perf_counter() - began
    if _steps:
        _steps[-1] = (*_steps[-1][:2], elapsed)
    return token


if __name__ == "__main__":
    Context.decode = decode_timed  # type: ignore[method-assign]
    SamplerChain.sample = sample_timed  # type: ignore[method-assign]
    status = run_engine()
    print(json.dumps(_steps))
    sys.exit(status)

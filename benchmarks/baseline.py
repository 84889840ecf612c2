"""The yardstick: llama.cpp's own server, from the very library that milepost uses.

    python -m benchmarks.baseline '{"model": "model.gguf", "n_ctx": 4096, ...}'

serves until its standard input ends, and prints its URL as the first line. `upstream_server` runs
that as a child process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Settings that both servers have, under upstream's names."""

    model: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    n_batch: int = 2048
    n_ubatch: int = 512


@contextlib.contextmanager
def upstream_server(settings: UpstreamSettings) -> Iterator[str]:
    """Run upstream's server in a process of its own and yield its URL; it is loaded by then.

    Raises RuntimeError when it does not come up.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.baseline",
        json.dumps(dataclasses.asdict(settings)),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError("upstream's server did not start")
            yield url
        finally:
            process.stdin.close()
            _wait_or_kill(process)


def _wait_or_kill(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _serve(settings: UpstreamSettings) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.n_ctx = settings.n_ctx
    params.n_parallel = settings.n_parallel
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.cpuparams.n_threads = settings.n_threads
    params.cpuparams_batch.n_threads = settings.n_threads
    # llama-server's own default since it shares the context between slots; the wheel's is False.
    params.kv_unified = True
    params.fit_params = False  # takes the settings as they are
    params.port = 0  # any that is free
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(UpstreamSettings(**json.loads(sys.argv[1])))

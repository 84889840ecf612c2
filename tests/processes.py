"""A real `milepost serve` as a child process on a free loopback port.

Used by the fixtures of the tests and by the benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0  # arbitrary; a tiny model takes about one second
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
# What one test wrote must not be found by another; those of the disk cache switch it on.
NO_DISK_CACHE = {"MILEPOST_CACHE_ON_DISK": "0"}
OWN_ENVIRONMENT = ("LLAMA_", "MILEPOST_")  # the developer's settings must not reach a test
KEPT_ENVIRONMENT = ("MILEPOST_LIBLLAMA",)


class ServerFailed(Exception):
    """The server did not come up; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has answered /health with 200."""

    url: str  # without a slash at the end
    process: subprocess.Popen[bytes]
    log_path: Path
    http: httpx.Client  # with `url` as its base; errors of the HTTP kind are not raised
    start_s: float  # from the start of the process to the first healthy answer

    def read_log(self) -> str:
        """Return what the server has written to stdout and stderr so far."""
        return self.log_path.read_text("utf-8", errors="replace")


@contextlib.contextmanager
def running_server(
    model: Path | str,
    flags: Sequence[str],
    log_path: Path,
    *,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:
    """Serve a model until the block is left.

    Raises ServerFailed when the process ends, or is not healthy in time.
    """
    port = find_free_port()
    address = ["--host", HOST, "--port", str(port)]
    command = [str(milepost_script()), "serve", "--model", str(model), *address, *flags]
    started = time.perf_counter()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(environment or {}),
            start_new_session=True,  # a Ctrl-C on the tests must not reach it first
        )
    url = f"http://{HOST}:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as http:
            wait_until_healthy(http, process, log_path)
            yield RunningServer(url, process, log_path, http, time.perf_counter() - started)
    finally:
        stop_process(process)


def wait_until_healthy(
    http: httpx.Client, process: subprocess.Popen[bytes], log_path: Path
) -> None:
    """Return when /health answers 200; raise ServerFailed when that cannot be any more."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(http):
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {process.returncode}:\n{_tail(log_path)}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"not healthy after {START_TIMEOUT_S} s:\n{_tail(log_path)}")
        time.sleep(POLL_S)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its session: kindly first, then with all of its children."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without settings of a server, and with `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_ENVIRONMENT or not name.startswith(OWN_ENVIRONMENT)
    }
    return kept | NO_DISK_CACHE | dict(extra)


def milepost_script() -> Path:
    """Return the installed `milepost` command of this interpreter."""
    return Path(sysconfig.get_path("scripts")) / "milepost"


def find_free_port() -> int:
    """Return a loopback port that was free just now; another program may still take it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health", timeout=2.0).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _tail(log_path: Path, num_chars: int = 4000) -> str:
    return log_path.read_text("utf-8", errors="replace")[-num_chars:]

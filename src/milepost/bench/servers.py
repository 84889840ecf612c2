"""Starts the servers that are compared, with the same settings, as child processes.

`compare` and the scripts in benchmarks/ call this. A server keeps its address when it is restarted;
it ends with the block that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import msgspec

from milepost.errors import BenchmarkFailed

HOST = "127.0.0.1"
START_TIMEOUT_S = 300.0  # arbitrary; a large model from a slow disk
STOP_TIMEOUT_S = 40.0  # more than it may take to write conversations to disk
POLL_S = 0.05
LOG_TAIL_CHARS = 2000
# Both servers read LLAMA_ARG_... variables; what the user's shell has must not reach only one.
OWN_ENVIRONMENT = ("LLAMA_", "MILEPOST_")
KEPT_ENVIRONMENT = ("MILEPOST_LIBLLAMA", "MILEPOST_EVICTION_POLICY")


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What both servers are told; None leaves it to the server's own default."""

    model: str  # path
    mmproj: str | None = None  # path of the projector
    ctx_size: int
    parallel: int
    threads: int
    batch_size: int = 2048
    ubatch_size: int = 512
    cache_ram_mib: int | None = None
    ctx_checkpoints: int | None = None  # of each slot
    checkpoint_min_step: int | None = None  # tokens
    chat_template_file: str | None = None
    slot_save_path: str | None = None  # folder

    def describe(self) -> dict[str, Any]:
        """Return the settings for the results, without paths."""
        fields = msgspec.structs.asdict(self)
        del fields["model"], fields["slot_save_path"]
        for name in ("chat_template_file", "mmproj"):
            if fields[name] is not None:
                fields[name] = Path(fields[name]).name
        return fields


@dataclass(slots=True)
class ServerProcess:
    """One server on a port of its own, from the start of the block to its end."""

    name: str
    command: list[str]  # without the port, which is its last argument
    log_path: Path
    notes: tuple[str, ...] = ()  # what of the settings it does not have
    port: int = field(default_factory=lambda: find_free_port())
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the server, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it has loaded its model. Raises BenchmarkFailed."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, str(self.port)],
                stdin=subprocess.PIPE,  # its end ends upstream's server, should we be killed
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(os.environ),
                start_new_session=True,  # a Ctrl-C reaches us first, and we stop it
            )
        try:
            self._wait_until_healthy(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it: kindly first, then with all of its children."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    async def restart(self) -> None:
        """End it and start it again at the same address. Raises BenchmarkFailed."""
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with httpx.Client(base_url=self.url, timeout=2.0, trust_env=False) as http:
            while not _is_healthy(http):
                if process.poll() is not None:
                    raise BenchmarkFailed(
                        f"{self.name} ended with status {process.returncode} before it was ready; "
                        f"its log ends with:\n{self._log_tail()}"
                    )
                if time.monotonic() > deadline_s:
                    raise BenchmarkFailed(
                        f"{self.name} was not ready after {START_TIMEOUT_S:.0f} s"
                    )
                time.sleep(POLL_S)

    def _log_tail(self) -> str:
        text = self.log_path.read_text("utf-8", errors="replace")
        return text[-LOG_TAIL_CHARS:].strip()


def make_milepost(served: ServedModel, log_folder: Path) -> ServerProcess:
    """Return this project's server, not yet started. Raises BenchmarkFailed."""
    program = [sys.executable, "-m", "milepost.cli.main", "serve"]
    known = _read_help(program)
    # A folder of its own for each server, so that no replay finds what another one left.
    cache = tempfile.mkdtemp(prefix="cache-", dir=log_folder)
    command = [*program, "--host", HOST, "--cache-dir", cache]
    notes = []
    for flag, value in _milepost_flags(served).items():
        if value is None:
            continue
        if flag in known:
            command += [flag, str(value)]
        else:
            notes.append(f"milepost has no {flag} yet: {value} was not given to it")
    return ServerProcess(
        "milepost", [*command, "--port"], log_folder / "milepost.log", tuple(notes)
    )


def make_upstream(served: ServedModel, log_folder: Path) -> ServerProcess:
    """Return llama.cpp's own server out of the library's wheel, not yet started."""
    settings = msgspec.json.encode(served).decode()
    command = [sys.executable, "-m", "milepost.bench.upstream", settings]
    return ServerProcess("llama-server", command, log_folder / "llama-server.log")


SERVERS: Mapping[str, Callable[[ServedModel, Path], ServerProcess]] = {
    "milepost": make_milepost,
    "llama-server": make_upstream,
}


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the settings of a server."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT_ENVIRONMENT or not name.startswith(OWN_ENVIRONMENT)
    }


def find_free_port() -> int:
    """Return a loopback port that was free just now; another program may still take it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _milepost_flags(served: ServedModel) -> dict[str, str | int | None]:
    return {
        "--model": served.model,
        "--mmproj": served.mmproj,
        "--ctx-size": served.ctx_size,
        "--parallel": served.parallel,
        "--threads": served.threads,
        "--batch-size": served.batch_size,
        "--ubatch-size": served.ubatch_size,
        "--cache-ram": served.cache_ram_mib,
        "--ctx-checkpoints": served.ctx_checkpoints,
        "--checkpoint-min-step": served.checkpoint_min_step,
        "--chat-template-file": served.chat_template_file,
        "--slot-save-path": served.slot_save_path,
    }


def _read_help(program: list[str]) -> set[str]:
    done = subprocess.run([*program, "--help"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkFailed(f"milepost serve --help failed: {done.stderr.strip()}")
    return set(done.stdout.replace(",", " ").split())


def _is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False

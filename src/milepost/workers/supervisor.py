"""Start an engine process, watch it, and start it again when it dies.

The process gets one end of a socket pair; its death is the end of the stream, and so is ours for
it. Loading fails for good when the first load fails: another try would find the same file. After a
death the wait before the next start doubles, and is forgotten after a while of good work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec

from milepost.config import EngineSettings, LogSettings
from milepost.errors import EngineStartFailed, MilepostError, ProtocolError
from milepost.protocol.failure import error_from
from milepost.protocol.framing import encode_frame
from milepost.protocol.messages import (
    PROTOCOL_VERSION,
    FromEngine,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    Ready,
)
from milepost.workers.client import EngineClient, EngineStream

ENGINE_COMMAND = (sys.executable, "-m", "milepost.engine.main")
FIRST_BACKOFF_S = 0.5  # arbitrary, doubled up to the next
MAX_BACKOFF_S = 30.0
GOOD_RUN_S = 60.0  # after so long a death counts as the first one again
# Then the process is killed; more than it may take to write to disk, otherwise arbitrary.
SHUTDOWN_GRACE_S = 25.0
WRITE_BUFFER_BYTES = 1 << 20  # for asyncio's flow control, which this side does not wait for

logger = logging.getLogger(__name__)


class Supervisor:
    """Keeps one engine process running for a client."""

    def __init__(
        self,
        client: EngineClient,
        settings: EngineSettings,
        log_settings: LogSettings,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._client = client
        self._load = Load(
            settings=msgspec.msgpack.encode(settings),
            log_settings=msgspec.msgpack.encode(log_settings),
        )
        self._command = command
        self._environment = environment or dict(os.environ)
        self._process: asyncio.subprocess.Process | None = None
        self._stream: EngineStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_load: asyncio.Future[None] | None = None
        self._on_progress: Callable[[float], None] | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        return self._process.pid if self._process else None

    def start(self, on_progress: Callable[[float], None] | None = None) -> asyncio.Future[None]:
        """Begin to start the process; return a future of the first load.

        The future gets an exception when the model cannot be loaded. `on_progress` gets the loaded
        fraction.
        """
        self._on_progress = on_progress
        self._first_load = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_running())
        return self._first_load

    async def stop(self) -> None:
        """End the process, kindly first; what still waits for it fails."""
        if self._task is None:
            return
        self._is_stopping = True
        if self._process is not None and self._process.returncode is None:
            self._client.shut_down()
            await wait_or_kill(self._process)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._client.state != "failed":
            self._client.detach("failed", "the server is shutting down")

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = FIRST_BACKOFF_S
        while True:
            started_s = loop.time()
            failure = await self._run_once()
            if self._is_stopping:
                return
            if self._first_load is not None and not self._first_load.done():
                error = failure or EngineStartFailed(self._exit_text())
                self._client.detach("failed", str(error))
                self._first_load.set_exception(error)
                return
            if loop.time() - started_s > GOOD_RUN_S:
                backoff_s = FIRST_BACKOFF_S
            reason = str(failure) if failure else self._exit_text()
            logger.error("%s; starting it again in %.1f s", reason, backoff_s)
            self._client.detach("restarting", f"{reason}; it is being started again")
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _run_once(self) -> MilepostError | None:
        """Run a process to its end; return why it could not be used, if it said so."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                process = self._process = await self._start_process(theirs)
            except OSError as error:
                return EngineStartFailed(f"cannot start {self._command[0]}: {error.strerror}")
            theirs.close()  # the end of the process must be the end of the stream
            loop = asyncio.get_running_loop()
            stream = self._stream = EngineStream(self._take)
            transport, _ = await loop.create_connection(lambda: stream, sock=ours)
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            self._write = transport.write
            try:
                failure = await stream.ended
            finally:
                transport.close()
                if process.returncode is None and stream.is_broken:
                    process.kill()
            await wait_or_kill(process)
        return failure

    async def _start_process(self, connection: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            str(connection.fileno()),
            pass_fds=[connection.fileno()],
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            # Ctrl-C is for the front end alone, which then ends the engine in order.
            start_new_session=True,
        )

    def _take(self, message: FromEngine) -> None:
        """Handle the messages of the start; all that come after `Ready` are the client's."""
        match message:
            case Hello():
                self._greet(message)
            case LoadFailed():
                raise error_from(message.failure)
            case LoadProgress():
                self._client.take(message)
                if self._on_progress is not None:
                    self._on_progress(message.fraction)
            case Ready():
                self._client.take(message)
                if self._stream is not None:
                    self._stream.take = self._client.take
                if self._first_load is not None and not self._first_load.done():
                    self._first_load.set_result(None)
            case _:
                self._client.take(message)

    def _greet(self, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the engine process speaks protocol {hello.protocol_version}, the front end "
                f"{PROTOCOL_VERSION}; both must come from one milepost"
            )
        logger.debug("engine process %d uses %s", hello.pid, hello.library)
        self._client.attach(self._write)
        self._write(encode_frame(self._load))

    def _exit_text(self) -> str:
        code = self._process.returncode if self._process else None
        how = f"by signal {-code}" if code is not None and code < 0 else f"with status {code}"
        return f"the engine process ended {how}"


async def wait_or_kill(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process that was told to end, and kill it when it takes too long."""
    try:
        await asyncio.wait_for(process.wait(), SHUTDOWN_GRACE_S)
    except TimeoutError:
        process.kill()
        await process.wait()

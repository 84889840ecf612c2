"""How an engine process is started, watched and started again; the process is a small fake."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from milepost.config import EngineSettings, LogSettings
from milepost.errors import EngineStartFailed, MilepostError, ModelFileError, ProtocolError
from milepost.workers.client import EngineClient
from milepost.workers.supervisor import FIRST_BACKOFF_S, Supervisor

FAKE = Path(__file__).parents[1] / "fakes" / "engine_process.py"
TIMEOUT_S = 30.0


def supervise(*command: str) -> tuple[EngineClient, Supervisor]:
    client = EngineClient()
    return client, Supervisor(client, EngineSettings(), LogSettings(), command=command)


def fake(way: str) -> tuple[EngineClient, Supervisor]:
    return supervise(sys.executable, str(FAKE), way)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine; what hangs fails."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


async def first_error(supervisor: Supervisor) -> BaseException | None:
    first_load = supervisor.start()
    await asyncio.wait([first_load])
    await supervisor.stop()
    return first_load.exception()


def test_a_process_that_loads_is_ready_and_reports_its_progress() -> None:
    async def test() -> None:
        client, supervisor = fake("serves")
        fractions: list[float] = []
        await supervisor.start(fractions.append)
        assert client.state == "ready"
        assert client.model is not None
        assert fractions == [0.5]
        await supervisor.stop()

    run(test)


def test_stopping_is_no_death(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        client, supervisor = fake("serves")
        await supervisor.start()
        await supervisor.stop()
        assert client.state == "failed"
        assert client.failure == "the server is shutting down"

    with caplog.at_level(logging.INFO):
        run(test)
    assert caplog.messages == []


def test_stopping_what_was_never_started_does_nothing() -> None:
    run(fake("serves")[1].stop)


def test_stopping_right_after_the_start_leaves_no_process() -> None:
    async def test() -> None:
        _, supervisor = fake("serves")
        supervisor.start()
        await supervisor.stop()

    run(test)


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        ("exit at once", EngineStartFailed, "ended with status 3"),
        ("garbage", ProtocolError, "a frame of 3 bytes is not a message"),
        ("other version", ProtocolError, "both must come from one milepost"),
        ("load fails", ModelFileError, "no such file"),
    ],
)
def test_a_first_start_that_fails_is_final(
    way: str, kind: type[MilepostError], message: str
) -> None:
    async def test() -> None:
        client, supervisor = fake(way)
        error = await first_error(supervisor)
        assert type(error) is kind
        assert message in str(error)
        assert client.state == "failed"
        assert message in client.failure

    run(test)


def test_a_command_that_cannot_be_started_fails_the_first_load() -> None:
    async def test() -> None:
        client, supervisor = supervise("/no/such/command")
        error = await first_error(supervisor)
        assert isinstance(error, EngineStartFailed)
        assert "cannot start /no/such/command: No such file" in str(error)
        assert client.state == "failed"

    run(test)


class Inbox(logging.Handler):
    """Hands log records to a coroutine."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put_nowait(record.getMessage())


def test_after_each_death_the_wait_doubles() -> None:
    async def test() -> None:
        client, supervisor = fake("dies after ready")
        logger, inbox = logging.getLogger("milepost.workers.supervisor"), Inbox()
        logger.addHandler(inbox)
        try:
            await supervisor.start()
            for wait_s in (FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S):
                assert await inbox.messages.get() == (
                    f"the engine process ended by signal 9; starting it again in {wait_s:.1f} s"
                )
            assert client.state == "restarting"
        finally:
            logger.removeHandler(inbox)
            await supervisor.stop()

    run(test)

"""Restarts a server that somebody else runs, through the command of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from milepost.errors import BenchmarkFailed

Restart = Callable[[], Awaitable[None]]


def restart_by_command(command: str) -> Restart:
    """Return a function that runs a shell command and waits for its end.

    The command ends the old server before it returns; the new one may still be loading. The
    function raises BenchmarkFailed when the command fails.
    """

    async def restart() -> None:
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,  # the table goes to ours
        )
        status = await process.wait()
        if status:
            raise BenchmarkFailed(f"the restart command ended with status {status}: {command}")

    return restart

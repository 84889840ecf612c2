"""Runs what turns a request into tokens; large requests on a thread, so that streams go on.

Rendering and tokenising a long conversation takes tens of milliseconds, much of it in native code
that releases the GIL. There is one thread: more would only take cores from the engine. Small
requests are prepared on the event loop meanwhile, so templates and tokenizer must not keep state
between calls that two threads could see half-changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Arbitrary: 10,000 tokens are prepared in about 10 ms; less is not worth a thread.
LARGE_BODY_BYTES = 32_768


class Preparation:
    """The thread; owned by the app."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare")

    async def run(self, num_body_bytes: int, work: Callable[[], T]) -> T:
        """Return what `work` returns; for a large body it runs on the thread."""
        if num_body_bytes < LARGE_BODY_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """End the thread after what it does now."""
        self._executor.shutdown(wait=False, cancel_futures=True)

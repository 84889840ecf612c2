"""Decides which request of a trace is sent next. Pure: knows no clock and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.traces.trace import TraceRequest


class Schedule:
    """The requests of a trace, handed out so that their recorded order holds.

    The requests of a session go one after the other, those of different sessions side by side, up
    to `concurrency`. A restart waits for all requests before it, and all after it wait for it.
    """

    def __init__(self, requests: Sequence[TraceRequest], concurrency: int) -> None:
        self._waiting = list(requests)
        self._running: list[TraceRequest] = []
        self._concurrency = concurrency

    def take(self) -> TraceRequest | None:
        """Return the next request to send, which runs from now on; None: wait, or all are sent."""
        if len(self._running) >= self._concurrency:
            return None
        busy = {request.session for request in self._running}
        for index, request in enumerate(self._waiting):
            if request.has_restart_before and (index or self._running):
                return None
            if request.session not in busy:
                self._running.append(request)
                return self._waiting.pop(index)
        return None

    def finish(self, request: TraceRequest) -> None:
        """Note that a request has its answer."""
        self._running.remove(request)

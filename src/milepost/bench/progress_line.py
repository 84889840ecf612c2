"""Shows how far a replay is: one line that is overwritten, or a new line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from milepost.bench.replay import Progress

REDRAW_S = 0.1
PLAIN_INTERVAL_S = 10.0  # where a line cannot be overwritten
CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """The line of one replay."""

    def __init__(
        self, label: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label = label
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._step = ""
        # Without a terminal, silence for the first seconds: many replays are over by then.
        self._next_s = clock() + (0.0 if self._is_terminal else PLAIN_INTERVAL_S)

    def show(self, progress: Progress) -> None:
        """Take the news; writes at most ten times a second."""
        now_s = self._clock()
        is_new_step = self._is_terminal and progress.step != self._step
        if now_s < self._next_s and not is_new_step:
            return
        self._step = progress.step
        self._next_s = now_s + (REDRAW_S if self._is_terminal else PLAIN_INTERVAL_S)
        text = describe_progress(self._label, progress)
        self._stream.write(f"{CLEAR_LINE}{text}" if self._is_terminal else f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._is_terminal:
            self._stream.write(CLEAR_LINE)
            self._stream.flush()


def describe_progress(label: str, progress: Progress) -> str:
    """Return the line."""
    text = f"{label}: {progress.step} {progress.num_done}/{progress.num_total}"
    if progress.left_s is None or progress.num_done == progress.num_total:
        return text
    return f"{text}, about {describe_duration(progress.left_s)} left"


def describe_duration(seconds: float) -> str:
    """Return a duration with its two largest units."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {rest_minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"

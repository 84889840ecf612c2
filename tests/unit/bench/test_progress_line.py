"""The progress line: overwritten on a terminal, now and then elsewhere."""

from __future__ import annotations

import io

import pytest

from milepost.bench.progress_line import ProgressLine, describe_duration, describe_progress
from milepost.bench.replay import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def progress(num_done: int, elapsed_s: float) -> Progress:
    return Progress(step="replaying", num_done=num_done, num_total=10, elapsed_s=elapsed_s)


def test_a_terminal_gets_one_line_with_the_time_left() -> None:
    stream, clock = Terminal(), Clock()
    line = ProgressLine("day", stream, clock)

    line.show(progress(0, 0.0))
    clock.now_s = 0.05
    line.show(progress(1, 0.05))  # too soon to be seen
    clock.now_s = 20.0
    line.show(progress(2, 20.0))
    line.clear()

    shown = stream.getvalue().split("\r\x1b[K")
    assert shown == ["", "day: replaying 0/10", "day: replaying 2/10, about 1 min 20 s left", ""]


def test_a_file_gets_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine("day", stream, clock)

    for second in range(25):
        clock.now_s = float(second)
        line.show(progress(1, float(second)))
    line.clear()

    assert stream.getvalue() == (
        "day: replaying 1/10, about 1 min 30 s left\nday: replaying 1/10, about 3 min 0 s left\n"
    )


@pytest.mark.parametrize(
    ("num_done", "text"), [(0, "day: replaying 0/10"), (10, "day: replaying 10/10")]
)
def test_no_time_is_guessed_at_the_start_and_at_the_end(num_done: int, text: str) -> None:
    assert describe_progress("day", progress(num_done, 5.0)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3700, "1 h 1 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text

"""Who waits is told from the choices that have not ended; who would be one too many is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from milepost.errors import QueueFull
from milepost.workers.client import WaitingLine, count_waiting


@dataclass
class Clock:
    """A clock that is set by hand."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("num_choices", "num_waiting"),
    [
        ([], 0),
        ([1, 1], 0),
        ([1, 1, 1], 1),
        ([2, 1], 1),
        ([1, 2, 1], 2),  # the last one would fit, but nobody is overtaken
        ([0, 0, 2], 0),  # the first two have ended
    ],
)
def test_waiting_requests_of_two_slots(num_choices: list[int], num_waiting: int) -> None:
    assert count_waiting(num_choices, 2) == num_waiting


def test_one_too_many_is_refused_and_counted() -> None:
    line = WaitingLine(max_waiting=2)
    line.check(1, [1, 1, 1], 2)
    with pytest.raises(QueueFull, match="2 waiting for 2 slots"):
        line.check(1, [1, 1, 1, 1], 2)
    assert line.num_refused == 1


def test_no_limit_and_no_waiting_at_all() -> None:
    WaitingLine(max_waiting=-1).check(1, [1] * 1000, 2)
    line = WaitingLine(max_waiting=0)
    line.check(2, [], 2)
    with pytest.raises(QueueFull):
        line.check(1, [2], 2)


def retry_after_s(line: WaitingLine) -> int:
    with pytest.raises(QueueFull) as found:
        line.check(1, [1], 1)
    return found.value.retry_after_s


def test_the_time_to_the_next_place_is_measured_while_no_slot_is_free() -> None:
    clock = Clock()
    line = WaitingLine(0, clock)
    assert retry_after_s(line) == 1  # nothing is known
    line.note_load(1, 1)
    clock.now_s += 8
    assert retry_after_s(line) == 8  # at least that long
    line.note_end()
    line.note_end()
    line.note_load(1, 1)
    clock.now_s += 1
    assert retry_after_s(line) == 5  # 2 in 9 s
    line.note_load(0, 1)
    clock.now_s += 3600
    line.note_load(1, 1)
    assert retry_after_s(line) == 1
    clock.now_s += 3600
    assert retry_after_s(line) == 60

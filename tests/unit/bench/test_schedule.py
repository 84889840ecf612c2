"""Order of sending: within a session as recorded, side by side between sessions."""

from __future__ import annotations

from milepost.bench.schedule import Schedule
from milepost.traces.trace import TraceRequest


def request(number: int, session: str, *, restart: bool = False) -> TraceRequest:
    return TraceRequest(
        id=number,
        session=session,
        kind="k",
        t=0.0,
        messages=[],
        tools=[],
        reply={},
        markers={"restart_before": True} if restart else {},
    )


def take_all(schedule: Schedule) -> list[TraceRequest]:
    taken = []
    while one := schedule.take():
        taken.append(one)
    return taken


def ids(requests: list[TraceRequest]) -> list[int]:
    return [one.id for one in requests]


def test_one_after_the_other_by_default() -> None:
    schedule = Schedule([request(0, "a"), request(1, "b")], concurrency=1)

    (first,) = take_all(schedule)
    assert first.id == 0

    schedule.finish(first)
    assert ids(take_all(schedule)) == [1]


def test_a_session_keeps_its_order_while_others_go_on() -> None:
    requests = [request(0, "a"), request(1, "a"), request(2, "b"), request(3, "c")]
    schedule = Schedule(requests, concurrency=2)

    running = take_all(schedule)
    assert ids(running) == [0, 2]

    schedule.finish(running[1])
    assert ids(take_all(schedule)) == [3]

    schedule.finish(running[0])
    assert ids(take_all(schedule)) == [1]


def test_nothing_passes_a_restart() -> None:
    requests = [request(0, "a"), request(1, "b", restart=True), request(2, "c")]
    schedule = Schedule(requests, concurrency=3)

    running = take_all(schedule)
    assert ids(running) == [0]

    schedule.finish(running[0])
    assert ids(take_all(schedule)) == [1, 2]


def test_a_restart_at_the_start_comes_first() -> None:
    schedule = Schedule([request(0, "a", restart=True)], concurrency=1)

    assert ids(take_all(schedule)) == [0]
    assert schedule.take() is None

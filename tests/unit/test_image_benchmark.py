"""The trace of screenshots has in it what its name says, and figures of it are told apart."""

from __future__ import annotations

from benchmarks.images import Measured, count_different_images, make_rows
from benchmarks.workloads.pictures import draw_screenshot
from benchmarks.workloads.screenshots import make_screenshots

from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.client.media_tokens import media_parts
from milepost.traces.trace import TraceRequest

TRACE = make_screenshots()
REQUESTS = list(TRACE.requests())


def images_of(request: TraceRequest) -> list[str]:
    """Return the sources of the images of a request."""
    return [part["image_url"]["url"] for part in media_parts(request.messages)]


def of_kind(kind: str) -> TraceRequest:
    """Return the last request of a kind."""
    return [request for request in REQUESTS if request.kind == kind][-1]


def test_the_trace_is_the_same_every_time() -> None:
    assert make_screenshots().lines == TRACE.lines
    assert make_screenshots(seed=2).threads != TRACE.threads


def test_requests_with_images_say_so() -> None:
    assert all((request.needs == "images") == bool(images_of(request)) for request in REQUESTS)


def test_one_image_is_repeated_one_replaced_and_put_back() -> None:
    replaced, restored = images_of(of_kind("replaced")), images_of(of_kind("restored"))
    assert len(replaced) == len(restored)
    assert [i for i, each in enumerate(replaced) if each != restored[i]] == [2]
    assert len(restored) == len(set(restored)) + 1


def test_images_come_in_results_of_tools_and_between_words() -> None:
    roles = {message["role"] for message in REQUESTS[-1].messages if list(media_parts([message]))}
    assert roles == {"tool", "user"}
    assert count_different_images(TRACE) == 9


def test_each_number_is_another_picture() -> None:
    assert len({draw_screenshot(480, 320, number) for number in range(9)}) == 9


def test_rows_tell_servers_and_kinds_apart() -> None:
    requests = tuple(
        RequestMeasure(
            id=i, session="s", kind=kind, status="ok", num_prefilled=10 * i, num_oracle=5
        )
        for i, kind in enumerate(("user_turn", "image", "repeated"))
    )
    measure = TraceMeasure(trace="t", variant="t", server="milepost", requests=requests)
    rows = {row.name: row for row in make_rows(Measured("milepost", measure, 12), TRACE)}
    assert rows["milepost: prefilled / oracle"].values == (2.0,)
    assert rows["milepost: the same, repeated"].values == (4.0,)
    assert rows["milepost: images encoded"].verdict == "missed"

"""A layout that cannot be had is told to whoever waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from milepost.engine.media.layouts import MediaLayouts, MediaModel
from milepost.errors import InvalidRequest, NativeCallFailed
from milepost.libllama.media import LayoutPart, MediaSize
from milepost.protocol.messages import CountMedia, MediaRef

SOUND = MediaRef(kind="audio", key=b"", num_samples=16)


@dataclass
class FailingProjector:
    """One whose layouts end with an error."""

    error: Exception
    has_audio: bool = True

    def lay_out(self, size: MediaSize) -> tuple[LayoutPart, ...]:
        raise self.error


@dataclass
class CallingWorker:
    """One that does everything at once."""

    def call(self, function: Any) -> None:
        function()


@dataclass
class Bench:
    error: Exception
    layouts: MediaLayouts = field(init=False)

    def __post_init__(self) -> None:
        projector: Any = FailingProjector(self.error)
        worker: Any = CallingWorker()
        self.layouts = MediaLayouts(MediaModel(projector, worker, b"", 0, 64))


def test_an_error_of_our_own_while_laying_out_is_told() -> None:
    layouts = Bench(RuntimeError("no memory")).layouts
    message = CountMedia(query_id=1, media=(SOUND,))
    assert layouts.hold_back(message)
    assert layouts.release_held() == [message]
    with pytest.raises(NativeCallFailed, match="could not be laid out: no memory"):
        layouts.find_layout(SOUND)


def test_an_error_that_is_kept_holds_no_frames_of_those_who_got_it() -> None:
    error = InvalidRequest("too short")
    layouts = Bench(error).layouts
    layouts.hold_back(CountMedia(query_id=1, media=(SOUND,)))
    layouts.release_held()
    depths = []
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            layouts.find_layout(SOUND)
        depths.append(len(list(iterate_frames(error))))
    assert depths[0] == depths[2]


def iterate_frames(error: BaseException) -> Any:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next

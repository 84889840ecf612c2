"""How much content the engine asks for at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.requests import make_generate

from milepost.engine.media.feed import MAX_CONTENT_BYTES, MediaFeed
from milepost.engine.media.layouts import MediaModel
from milepost.engine.media.prompt import MediaSpan
from milepost.engine.media.worker import Done, Job
from milepost.engine.sequence import Request
from milepost.libllama.media import EmbeddingBlock
from milepost.protocol.counters import Counters
from milepost.protocol.messages import MediaData, MediaRef, NeedMedia

NO_OFFSETS = np.zeros((1, 0), np.int32)
BLOCK = EmbeddingBlock(1, 1, NO_OFFSETS, NO_OFFSETS, is_causal=True)
EMBEDDINGS = [np.zeros((1, 4), np.float32)]
SIDE = 5000  # of images of 75 MB: three of them are asked for


@dataclass
class HeldWorker:
    """One that works when it is told to."""

    jobs: list[Job] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    has_files: bool = False

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        """End the oldest job."""
        job = self.jobs.pop(0)
        self.done.append(Done(job) if job.is_cancelled else Done(job, EMBEDDINGS))

    def collect(self) -> list[Done]:
        done, self.done = self.done, []
        return done


class Bench:
    """A feed, and what it asked for and was not given."""

    def __init__(self) -> None:
        self.worker = HeldWorker()
        self.asked: list[bytes] = []
        model: Any = MediaModel(None, self.worker, b"", 1 << 20, 64)  # type: ignore[arg-type]
        self.feed = MediaFeed(model, self._take, Counters())

    def _take(self, message: Any) -> None:
        assert isinstance(message, NeedMedia)
        self.asked += message.keys

    def give(self) -> None:
        """Answer the oldest question."""
        data = bytes(3 * SIDE * SIDE)
        self.feed.take_content(MediaData(key=self.asked.pop(0), data=data))


def request(number: int, *images: MediaSpan) -> tuple[Request, tuple[MediaSpan, ...]]:
    message = make_generate(number)
    return Request(message, np.zeros(100, np.int32), 0.0, images), images


def image(number: int, side: int = SIDE) -> MediaSpan:
    ref = MediaRef(kind="image", key=bytes([number]) * 32, width=side, height=side)
    return MediaSpan(number, number + 1, ref, 0, BLOCK)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_content_is_asked_for_as_far_as_there_is_room(bench: Bench) -> None:
    needs = [request(1, *map(image, range(6)))]
    bench.feed.serve(needs)
    assert [key[0] for key in bench.asked] == [0, 1, 2]

    bench.give()  # it waits to be encoded
    bench.feed.serve(needs)
    assert [key[0] for key in bench.asked] == [1, 2]

    bench.worker.work()
    bench.feed.serve(needs)
    assert [key[0] for key in bench.asked] == [1, 2, 3]


def test_one_media_may_be_larger_than_the_room_alone(bench: Bench) -> None:
    side = 10_000
    assert 3 * side * side > MAX_CONTENT_BYTES
    bench.feed.serve([request(1, image(0, side), image(1, 8))])
    assert [key[0] for key in bench.asked] == [0]


def test_content_that_nobody_waits_for_counts_until_it_is_gone(bench: Bench) -> None:
    left, other = request(1, *map(image, range(3))), request(2, *map(image, range(3, 6)))
    bench.feed.serve([left])
    for _ in range(3):
        bench.give()
    bench.feed.serve([other])
    assert bench.asked == []
    bench.worker.work()
    bench.feed.serve([other])
    assert [key[0] for key in bench.asked] == [3]

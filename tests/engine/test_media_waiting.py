"""While an image is fetched and encoded everybody else goes on, and nobody waits in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.engine.running import prompt_tokens
from tests.engine.watching import SteppedWorker, WatchedEngine, WatchedMedia, watched_engine
from tests.media_content import Content, make_image, make_sound
from tests.projectors import KIND_OF, write_audio_projector, write_projector

from milepost.config import EngineSettings
from milepost.libllama import Model, ModelParams, open_library
from milepost.libllama.media import Projector, ProjectorParams
from milepost.protocol.cache import CacheChanged, ChangeCache
from milepost.protocol.messages import CountMedia

ONE, TWO, LARGE = make_image(1), make_image(2), make_image(3, 256, 256)
NUM_LARGE_TOKENS = 256  # of the hybrid's projector
MAX_STEPS = 300


@pytest.fixture
def engine(tiny_models: dict[models.Kind, Path], tmp_path: Path) -> Iterator[WatchedEngine]:
    """An engine on the hybrid whose images are encoded when a test says so."""
    path = write_projector(KIND_OF["hybrid"], tmp_path / "projector.gguf")
    settings = EngineSettings(
        ctx_size=2048, parallel=2, batch_size=128, ubatch_size=64, threads=1, parked_slots=0
    )
    with Model(open_library(), tiny_models["hybrid"], ModelParams()) as model:
        projector = Projector(model, path, ProjectorParams(use_gpu=False, num_threads=1))
        media = WatchedMedia(projector, [ONE, TWO, LARGE], 1 << 20, waits=True)
        with watched_engine(model, settings, 64 << 20, media) as engine:
            yield engine
        projector.close()


def worker(engine: WatchedEngine) -> SteppedWorker:
    assert engine.runtime.media is not None
    found = engine.runtime.media.worker
    assert isinstance(found, SteppedWorker)
    return found


def send(engine: WatchedEngine, seed: int, image: Content | None = None, **fields: Any) -> int:
    """Send 80 tokens with an image in their middle."""
    media = (image.ref(40),) if image else ()
    return engine.send(prompt_tokens(80, seed), media=media, **{"max_tokens": 4, **fields})


def step_until_encoding(engine: WatchedEngine) -> None:
    for _ in range(MAX_STEPS):
        if worker(engine).jobs:
            return
        engine.step()
    raise AssertionError("nothing is to be encoded")


def held(engine: WatchedEngine) -> int:
    """Return how many tokens the first running choice holds."""
    loop = engine.loop
    return loop.parts.slots[next(iter(loop.parts.scheduler.running))].num_tokens


def test_the_text_before_an_image_is_computed_meanwhile(engine: WatchedEngine) -> None:
    number = send(engine, 1, ONE)
    step_until_encoding(engine)
    assert held(engine) == 40 + 11
    worker(engine).work()
    engine.wait(number)
    assert len(engine.replies[number].tokens) == 4


def test_a_stream_goes_on_while_an_image_is_encoded(engine: WatchedEngine) -> None:
    waiting = send(engine, 2, ONE)
    step_until_encoding(engine)

    other = send(engine, 3, max_tokens=20)
    engine.wait(other)

    assert engine.replies[waiting].finished is None
    worker(engine).work()
    engine.wait(waiting)


def test_a_stream_goes_on_between_the_parts_of_an_image(engine: WatchedEngine) -> None:
    stream = send(engine, 4, max_tokens=60)
    while not engine.replies[stream].tokens:
        engine.step()
    number = send(engine, 5, LARGE)
    step_until_encoding(engine)
    worker(engine).work()
    counts = []
    while engine.replies[number].finished is None:
        engine.step()
        counts.append(len(engine.replies[stream].tokens))
    # The large image alone takes several micro-batches, and each step has a token of the stream.
    assert counts[-1] - counts[0] >= NUM_LARGE_TOKENS // 64
    assert all(later - before <= 1 for before, later in zip(counts, counts[1:], strict=False))
    engine.wait(stream)


def test_one_that_leaves_while_its_image_is_encoded_leaves_the_slot(engine: WatchedEngine) -> None:
    number = send(engine, 6, ONE)
    step_until_encoding(engine)
    (job,) = worker(engine).jobs

    engine.cancel(number)
    engine.wait(number)
    engine.connection.wake()  # type: ignore[attr-defined]
    engine.step()

    assert job.is_cancelled
    worker(engine).work()
    engine.check_idle()
    again = send(engine, 6, ONE)
    step_until_encoding(engine)
    worker(engine).work()
    engine.wait(again)
    assert engine.replies[again].num_cached == 40 + 11


def test_a_large_image_that_is_left_half_way_is_computed_again(engine: WatchedEngine) -> None:
    number = send(engine, 7, LARGE)
    step_until_encoding(engine)
    worker(engine).work()
    while not engine.loop.parts.slots.slots[0].num_partial:
        engine.step()
    engine.cancel(number)
    engine.wait(number)
    engine.check_idle()

    again = send(engine, 7, LARGE)
    engine.wait(again)

    assert engine.replies[again].num_cached == 40 + 11
    assert worker(engine).jobs == []


def test_what_was_left_within_an_image_can_be_dropped(engine: WatchedEngine) -> None:
    """The slot is cleared, for the hybrid cannot be cut; states before the image are kept."""
    number = send(engine, 7, LARGE)
    step_until_encoding(engine)
    worker(engine).work()
    while not engine.loop.parts.slots.slots[0].num_partial:
        engine.step()
    engine.cancel(number)
    engine.wait(number)

    engine.connection.inbox.append(ChangeCache(query_id=1, action="drop", request_id=number))
    engine.loop.step()
    answers = [each for each in engine.connection.sent if isinstance(each, CacheChanged)]
    again = send(engine, 7, LARGE)
    while engine.replies[again].finished is None:
        engine.step()
        worker(engine).work()

    assert answers[0].freed_bytes > 0
    assert engine.replies[again].num_cached == 0


def test_another_is_asked_when_the_one_that_was_asked_has_left(engine: WatchedEngine) -> None:
    contents, engine.contents = engine.contents, {}
    engine.contents[ONE.ref().key] = b""  # not answered: it is taken out of the inbox below
    first, second = send(engine, 8, ONE), send(engine, 9, ONE)
    engine.step()
    asked = [m for m in engine.connection.inbox if type(m).__name__ == "MediaData"]
    assert len(asked) == 1
    engine.connection.inbox.remove(asked[0])
    engine.contents = contents

    engine.cancel(first)
    engine.wait(first)
    step_until_encoding(engine)
    worker(engine).work()
    engine.wait(second)

    assert engine.num_asked == 2
    assert len(engine.replies[second].tokens) == 4


def test_content_that_is_gone_fails_the_one_that_was_asked(engine: WatchedEngine) -> None:
    first, second = send(engine, 8, ONE), send(engine, 9, ONE)
    engine.gone = {first}
    step_until_encoding(engine)
    worker(engine).work()
    engine.wait(second)

    failed = engine.replies[first].failed
    assert failed is not None
    assert "96x64 pixels is gone" in failed.failure.message
    assert engine.num_asked == 2
    assert len(engine.replies[second].tokens) == 4
    engine.check_idle()


def test_what_was_encoded_is_not_asked_for_again(engine: WatchedEngine) -> None:
    for seed in (10, 11):
        number = send(engine, seed, TWO)
        while engine.replies[number].finished is None:
            engine.step()
            worker(engine).work()
    assert engine.num_asked == 1
    counters = engine.loop.parts.statistics.counters
    assert (counters.num_media_encoded, counters.num_media_reused) == (1, 1)


def test_audio_that_is_laid_out_holds_up_nobody(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    """That takes as long as computing its spectrum, so it is done where encoding is."""
    path = write_audio_projector(tmp_path / "projector.gguf")
    settings = EngineSettings(ctx_size=1024, parallel=2, batch_size=128, ubatch_size=64, threads=1)
    sound = make_sound(1)
    with Model(open_library(), tiny_models["hybrid"], ModelParams()) as model:
        projector = Projector(model, path, ProjectorParams(use_gpu=False, num_threads=1))
        media = WatchedMedia(projector, [sound], 1 << 20, waits=True)
        with watched_engine(model, settings, 64 << 20, media) as engine:
            waiting, left = send(engine, 20, sound), send(engine, 21, sound)
            engine.connection.inbox.append(CountMedia(query_id=5, media=(sound.ref(),)))
            other = send(engine, 22)
            engine.wait(other)
            assert not engine.replies[waiting].spans
            engine.cancel(left)
            engine.wait(left)
            worker(engine).work()
            step_until_encoding(engine)
            worker(engine).work()
            engine.wait(waiting)
        projector.close()
    assert engine.counts == {5: (25,)}
    assert engine.replies[waiting].finished.num_prompt_tokens == 80 + 25  # type: ignore[union-attr]
    assert engine.replies[left].finished.reason == "cancelled"  # type: ignore[union-attr]


def test_an_abort_right_behind_an_image_keeps_the_image(tmp_path: Path) -> None:
    """The last position is then that of the image's begin, far before the next one."""
    model_path = models.write_model("full_rows", tmp_path / "model.gguf", shape=models.SQUARE)
    path = write_projector("qwen3vl", tmp_path / "projector.gguf")
    settings = EngineSettings(ctx_size=1024, parallel=1, batch_size=256, ubatch_size=64, threads=1)
    with Model(open_library(), model_path, ModelParams()) as model:
        projector = Projector(model, path, ProjectorParams(use_gpu=False, num_threads=1))
        media = WatchedMedia(projector, [ONE], 1 << 20)
        with watched_engine(model, settings, 64 << 20, media) as engine:
            engine.loop.parts.statistics.prefill_tokens_per_s = 1e6  # so that batches are large
            fields: dict[str, Any] = {"media": (ONE.ref(0),), "max_tokens": 4}
            number = engine.send(prompt_tokens(300, 30), **fields)
            while not engine.loop.parts.scheduler.running or held(engine) < 11 + 24:
                engine.step()
            assert held(engine) == 11 + 24

            engine.step_aborted(0)

            assert held(engine) == 11 + 24
            assert engine.loop.parts.statistics.counters.num_prefilled_tokens == 11 + 24
            engine.wait(number)
            engine.check_idle()
            again = engine.ask(prompt_tokens(300, 30), cache_prompt=False, **fields)
            assert engine.replies[number].tokens == again.tokens
        projector.close()


def test_a_choice_that_lost_its_cells_computes_the_image_again(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    """While its sibling, which is past the image, goes on."""
    path = write_projector(KIND_OF["hybrid"], tmp_path / "projector.gguf")
    settings = EngineSettings(
        ctx_size=2048, parallel=3, batch_size=128, ubatch_size=64, threads=1, parked_slots=0
    )
    with Model(open_library(), tiny_models["hybrid"], ModelParams()) as model:
        projector = Projector(model, path, ProjectorParams(use_gpu=False, num_threads=1))
        media = WatchedMedia(projector, [ONE], 1 << 20)
        with watched_engine(model, settings, 1, media) as engine:
            other = send(engine, 40, max_tokens=200)
            number = send(engine, 41, ONE, max_tokens=60, num_choices=2)
            while len(engine.replies[number].tokens) < 4:
                engine.step()
            lost = [*engine.loop.parts.scheduler.running.values()][-1]
            assert lost.request.request_id == number
            engine.loop.parts.scheduler.make_room()
            assert (lost.state, engine.loop.parts.slots[lost.slot_id].num_tokens) == (
                "preempted",
                0,
            )
            engine.cancel(other)

            engine.wait(number)
            while engine.loop.parts.scheduler.running:
                engine.step()

            engine.check_idle()
            assert lost.num_decoded == 60
            assert lost.request.num_prefilled > 2 * (80 + 11)  # its image was computed twice
        projector.close()

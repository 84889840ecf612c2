"""Images in prompts, in real engine processes: reused like text, and encoded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.engine.conftest import Engines
from tests.engine.running import Answer, RunningEngine, check_same, prompt_tokens, running_engine
from tests.media_content import Content, Image, make_image, make_sound
from tests.projectors import KIND_OF, write_audio_projector, write_projector

from milepost.errors import ConfigurationError, InvalidRequest
from milepost.protocol.cache import CacheReport
from milepost.protocol.messages import MediaRef

FIELDS: dict[str, Any] = {"max_tokens": 4, "num_logprobs": 10}
ONE, TWO, THREE = make_image(1), make_image(2), make_image(3)
# Of an image of 96x64 pixels, the marks spelled in letters by the tiny vocabulary.
BEGIN_TOKENS: dict[models.Kind, int] = {"window": 13, "hybrid": 11, "full": 13, "recurrent": 13}
NUM_TOKENS: dict[models.Kind, int] = {"window": 29, "hybrid": 45, "full": 29, "recurrent": 29}

Places = Sequence[tuple[int, Content]]  # index in the text before which an image stands
Projectors = Mapping[models.Kind, Path]


@pytest.fixture(scope="session")
def projectors(tmp_path_factory: pytest.TempPathFactory) -> Projectors:
    """The path of a projector for the tiny model of each kind."""
    folder = tmp_path_factory.mktemp("engine-projectors")
    return {kind: write_projector(of, folder / f"{kind}.gguf") for kind, of in KIND_OF.items()}


@pytest.fixture(scope="module", params=models.KINDS)
def kind(request: pytest.FixtureRequest) -> models.Kind:
    """Each memory kind in turn."""
    kind: models.Kind = request.param
    return kind


@pytest.fixture(scope="module")
def engine(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, kind: models.Kind
) -> Iterator[RunningEngine]:
    """An engine that takes images, with two slots and no parked ones."""
    settings: dict[str, Any] = {"parallel": 2, "parked_slots": 0}
    with running_engine(tiny_models[kind], mmproj=str(projectors[kind]), **settings) as engine:
        yield engine


def fields(tokens: Sequence[int], places: Places, **others: Any) -> dict[str, Any]:
    """Return the fields of a request whose images can all be asked for."""
    return {
        "tokens": tokens,
        "media": tuple(image.ref(pos) for pos, image in places),
        "media_data": {image.ref().key: image.data for _, image in places},
        **FIELDS,
        **others,
    }


def ask(engine: RunningEngine, tokens: Sequence[int], places: Places = (), **others: Any) -> Answer:
    """Return an answer, after comparing it with one that reuses nothing."""
    answer = engine.ask(**fields(tokens, places, **others))
    check_same(answer, engine.ask(**fields(tokens, places, cache_prompt=False)))
    return answer


def report(answer: Answer) -> CacheReport:
    assert answer.end.cache is not None
    return answer.end.cache


def test_a_replaced_image_costs_what_stands_from_it_on(
    engine: RunningEngine, kind: models.Kind
) -> None:
    prompt = prompt_tokens(300, seed=1)
    first = ask(engine, prompt, [(200, ONE)])
    assert first.end.num_prompt_tokens == 300 + NUM_TOKENS[kind]

    replaced = ask(engine, prompt, [(200, TWO)])
    again = ask(engine, prompt, [(200, ONE)])

    assert replaced.end.timings.cache_n == 200 + BEGIN_TOKENS[kind]
    assert report(replaced).divergence is not None
    assert report(replaced).num_media_encoded == 1
    assert again.end.timings.prompt_n == 0
    assert report(again).num_media_encoded == 0


def test_an_image_behind_a_replaced_one_is_not_encoded_again(engine: RunningEngine) -> None:
    prompt = prompt_tokens(200, seed=2)
    ask(engine, prompt, [(60, ONE), (150, TWO)])
    moved = ask(engine, prompt, [(0, TWO), (120, ONE), (200, ONE)])
    assert (report(moved).num_media, report(moved).num_media_encoded) == (3, 0)
    assert moved.end.timings.cache_n == 0


@pytest.mark.parametrize(
    "places", [[(0, ONE)], [(90, ONE)], [(45, ONE), (45, TWO)], [(30, ONE), (60, ONE), (90, ONE)]]
)
def test_the_next_turn_goes_on_behind_images(engine: RunningEngine, places: Places) -> None:
    prompt = prompt_tokens(90, seed=3)
    first = ask(engine, prompt, places)
    longer = [*prompt, *first.tokens, *prompt_tokens(40, seed=4)]

    second = ask(engine, longer, [*places, (len(longer), THREE)])

    num_held = first.end.num_prompt_tokens + len(first.tokens) - 1
    assert second.end.timings.cache_n == num_held
    assert report(second).num_media == len(places) + 1


def test_a_prompt_may_be_nothing_but_images(engine: RunningEngine, kind: models.Kind) -> None:
    first = ask(engine, [], [(0, THREE)])
    assert first.end.num_prompt_tokens == NUM_TOKENS[kind]
    second = ask(engine, [], [(0, THREE), (0, ONE)])
    assert second.end.num_prompt_tokens == 2 * NUM_TOKENS[kind]


def test_a_removed_image_leaves_what_stands_before_it(
    engine: RunningEngine, kind: models.Kind
) -> None:
    prompt = prompt_tokens(400, seed=5)
    ask(engine, prompt, [(150, TWO), (300, ONE)])

    removed = ask(engine, prompt, [(150, TWO)])

    # States are kept after the image before; full attention is cut where they part.
    num_least = 150 + NUM_TOKENS[kind] - 12
    assert removed.end.timings.cache_n >= num_least
    assert ask(engine, prompt, [(150, TWO)]).end.timings.prompt_n == 0


def test_what_is_cached_needs_neither_the_content_nor_a_projector_run(
    engine: RunningEngine,
) -> None:
    prompt, image = prompt_tokens(120, seed=6), make_image(60)
    first = ask(engine, prompt, [(50, image)])
    longer = [*prompt, *first.tokens, *prompt_tokens(20, seed=7)]

    answer = engine.ask(**fields(longer, [(50, image)], media_data={}))

    assert answer.end.timings.prompt_n == 20 + 1
    assert report(answer).num_media_encoded == 0


def test_requests_at_once_share_one_encode(engine: RunningEngine) -> None:
    image = make_image(70)
    before = engine.counters()
    requests = [fields(prompt_tokens(80, seed=seed), [(40, image)]) for seed in (8, 9, 10)]

    answers = engine.ask_all(*requests)

    counters = engine.counters()
    assert counters.num_media_encoded - before.num_media_encoded == 1
    assert sum(report(answer).num_media_encoded for answer in answers) == 1
    for answer, request in zip(answers, requests, strict=True):
        check_same(answer, engine.ask(**{**request, "cache_prompt": False}))


def test_choices_go_on_from_one_prompt_with_an_image(engine: RunningEngine) -> None:
    request = fields(prompt_tokens(70, seed=11), [(30, ONE)])
    answer = engine.ask(**request, num_choices=2)
    assert answer.choices[0].tokens == answer.choices[1].tokens
    check_same(answer, engine.ask(**{**request, "cache_prompt": False}))


def test_a_prompt_may_end_with_an_image_before_its_end_mark(engine: RunningEngine) -> None:
    prompt = prompt_tokens(64, seed=12)
    first = ask(engine, prompt, [(64, ONE)])
    assert ask(engine, prompt, [(64, ONE)]).end.timings.prompt_n == 0
    assert ask(engine, prompt, [(64, TWO)]).tokens != [] != first.tokens


def test_penalties_look_at_text_only(engine: RunningEngine) -> None:
    from milepost.protocol.sampling import SamplingParams

    sampling = SamplingParams(
        temperature=0.0, ignore_eos=True, repeat_last_n=-1, repeat_penalty=1.5, dry_multiplier=0.8
    )
    answer = engine.ask(**fields(prompt_tokens(60, seed=13), [(30, ONE)], sampling=sampling))
    assert len(answer.tokens) == 4


def test_media_are_counted_without_content(engine: RunningEngine, kind: models.Kind) -> None:
    before = engine.counters().num_media_encoded
    large = MediaRef(kind="image", key=b"", width=1920, height=1080)
    counts = engine.run(engine.client.count_media([ONE.ref(), large]))
    assert counts[0] == NUM_TOKENS[kind]
    assert counts[1] >= counts[0]
    with pytest.raises(InvalidRequest, match="takes no audio"):
        engine.run(engine.client.count_media([MediaRef(kind="audio", key=b"", num_samples=9)]))
    assert engine.counters().num_media_encoded == before


@pytest.mark.parametrize(
    ("image", "data", "sentence"),
    [
        (ONE, ONE.data[:-1], "has 18431 bytes instead of 18432"),
        (ONE, b"", "has 0 bytes"),
        (Image(0, 4, b""), b"", "0x4 pixels"),
    ],
)
def test_media_that_cannot_be_used_end_their_request_alone(
    engine: RunningEngine, image: Image, data: bytes, sentence: str
) -> None:
    ref = image.ref(20)
    bad = MediaRef(pos=20, kind="image", key=b"?" * 32, width=ref.width, height=ref.height)
    prompt = prompt_tokens(80, seed=14)

    with pytest.raises(InvalidRequest, match=sentence):
        engine.ask(prompt, media=(bad,), media_data={bad.key: data}, **FIELDS)

    assert ask(engine, prompt, [(20, ONE)]).reason == "limit"
    assert engine.is_idle


@pytest.mark.parametrize(
    ("refs", "sentence"),
    [
        ((ONE.ref(30), TWO.ref(20)), "rising order"),
        ((ONE.ref(81),), "rising order"),
        ((MediaRef(pos=0, kind="image", key=b"x", width=1, height=1),), "1 bytes, not 32"),
        ((MediaRef(pos=0, kind="audio", key=b"x" * 32, num_samples=9),), "takes no audio"),
    ],
)
def test_references_that_make_no_prompt_are_refused(
    engine: RunningEngine, refs: tuple[MediaRef, ...], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        engine.ask(prompt_tokens(80, seed=15), media=refs, **FIELDS)


def test_without_a_projector_media_are_refused(engines: Engines) -> None:
    engine = engines("full")
    assert engine.client.model is not None
    assert not engine.client.model.has_vision
    with pytest.raises(InvalidRequest, match="without a projector"):
        engine.ask(**fields(prompt_tokens(50, seed=16), [(20, ONE)]))
    with pytest.raises(InvalidRequest, match="--mmproj"):
        engine.run(engine.client.count_media([ONE.ref()]))


def test_an_image_that_must_fit_into_a_micro_batch_is_refused(
    tiny_models: dict[models.Kind, Path], projectors: Projectors
) -> None:
    settings: dict[str, Any] = {"mmproj": str(projectors["window"]), "ubatch_size": 2}
    with running_engine(tiny_models["window"], parallel=1, **settings) as engine:
        with pytest.raises(InvalidRequest, match="--ubatch-size 4 or more"):
            engine.ask(**fields(prompt_tokens(50, seed=17), [(20, ONE)]))
        assert engine.ask(prompt_tokens(50, seed=17), **FIELDS).reason == "limit"


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_audio_is_reused_like_images(
    tiny_models: dict[models.Kind, Path], kind: models.Kind, tmp_path: Path
) -> None:
    path = write_audio_projector(tmp_path / "audio.gguf")
    short, long = make_sound(1), make_sound(2, 16000 * 31)
    prompt = prompt_tokens(100, seed=18)
    with running_engine(tiny_models[kind], parallel=1, mmproj=str(path)) as engine:
        assert engine.client.model is not None
        assert engine.client.model.has_audio
        assert engine.client.model.audio_sample_rate == 16000
        first = ask(engine, prompt, [(50, short), (100, long)])  # it has no mark after its end
        again = ask(engine, prompt, [(50, short), (100, long)])
        other = ask(engine, prompt, [(50, short), (100, make_sound(3, 16000 * 31))])

    assert first.end.num_prompt_tokens == 100 + 25 + 50
    assert again.end.timings.prompt_n == 0
    assert other.end.timings.cache_n == 125
    assert report(other).num_media_encoded == 1


def test_a_projector_that_does_not_fit_is_no_engine(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    path = write_projector("gemma3", tmp_path / "wide.gguf", text_width=96)
    with (
        pytest.raises(ConfigurationError, match=r"wide\.gguf cannot be used as a projector"),
        running_engine(tiny_models["full"], mmproj=str(path)),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match="--image-max-tokens 5"),
        running_engine(
            tiny_models["full"], mmproj=str(path), image_min_tokens=9, image_max_tokens=5
        ),
    ):
        pass


def test_no_mmproj_is_stronger_than_a_file(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    with running_engine(
        tiny_models["full"], mmproj=str(tmp_path / "none"), mmproj_auto=False
    ) as engine:
        assert engine.client.model is not None
        assert not engine.client.model.has_vision

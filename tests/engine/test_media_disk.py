"""After a restart neither prompts with images are computed again, nor images encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.engine.running import RunningEngine, check_same, prompt_tokens, running_engine
from tests.engine.test_disk import disk, source
from tests.engine.test_media import FIELDS, Projectors, ask, fields, projectors, report
from tests.media_content import make_image
from tests.soak import soak_beside

from milepost.errors import InvalidRequest

__all__ = ["projectors"]  # a fixture

ONE, TWO = make_image(1), make_image(2)
WITH_STATES: tuple[models.Kind, ...] = ("window", "hybrid")


def find_embeddings(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/media/*") if path.suffix != ".tmp"]


def wait_for_embeddings(engine: RunningEngine, folder: Path, num_files: int) -> None:
    """They are written after the answer, by one thread in order: the next encode is later."""
    last = make_image(900 + num_files)
    engine.ask(**fields(prompt_tokens(20, seed=90), [(10, last)]))
    engine.ask(**fields(prompt_tokens(20, seed=91), [(10, make_image(901 + num_files))]))
    assert len(find_embeddings(folder)) > num_files


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_conversation_with_images_goes_on_after_a_restart(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, kind: models.Kind, tmp_path: Path
) -> None:
    prompt = prompt_tokens(300, seed=1)
    settings = disk(tmp_path, mmproj=str(projectors[kind]))
    with running_engine(tiny_models[kind], **settings) as engine:
        first = engine.ask(**fields(prompt, [(100, ONE), (250, TWO)]))
        wait_for_embeddings(engine, tmp_path, 2)
    longer = [*prompt, *first.tokens, *prompt_tokens(30, seed=2)]

    with running_engine(tiny_models[kind], **settings) as engine:
        answer = engine.ask(**fields(longer, [(100, ONE), (250, TWO)], media_data={}))
        other = engine.ask(**fields(prompt_tokens(50, seed=3), [(20, TWO)], media_data={}))
        num_encoded = engine.counters().num_media_encoded
        fresh = engine.ask(
            **fields(longer, [(100, ONE), (250, TWO)], media_data={}, cache_prompt=False)
        )

    assert source(answer) == "disk"
    assert answer.end.timings.cache_n == first.end.num_prompt_tokens + len(first.tokens) - 1
    assert (report(answer).num_media_encoded, report(other).num_media_encoded) == (0, 0)
    assert num_encoded == 0
    check_same(answer, fresh)


def test_damaged_embeddings_are_asked_for(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, tmp_path: Path
) -> None:
    settings = disk(tmp_path, mmproj=str(projectors["full"]))
    prompt = prompt_tokens(60, seed=4)
    with running_engine(tiny_models["full"], **settings) as engine:
        expected = engine.ask(**fields(prompt, [(30, ONE)]))
        wait_for_embeddings(engine, tmp_path, 1)
    for path in find_embeddings(tmp_path):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    with running_engine(tiny_models["full"], **settings) as engine:
        answer = engine.ask(**fields(prompt, [(30, ONE)], cache_prompt=False))
        assert report(answer).num_media_encoded == 1
        check_same(answer, expected)


@pytest.mark.parametrize("kind", soak_beside(models.KINDS, ("full", "hybrid")))
def test_a_projector_changes_nothing_for_text(
    tiny_models: dict[models.Kind, Path],
    projectors: Projectors,
    tmp_path: Path,
    kind: models.Kind,
) -> None:
    """What is computed without one goes on with one, and the other way round."""
    prompt = prompt_tokens(200, seed=5)
    for settings in ({}, {"mmproj": str(projectors[kind])}, {}):
        with running_engine(tiny_models[kind], **disk(tmp_path, **settings)) as engine:
            answer = engine.ask(prompt, **FIELDS)
            prompt += [*answer.tokens, *prompt_tokens(20, seed=6)]
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    assert source(answer) == "disk"
    assert answer.end.timings.prompt_n == 20 + 1


def test_another_projector_makes_other_keys(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, tmp_path: Path
) -> None:
    prompt, cached = prompt_tokens(120, seed=7), []
    for settings in ({}, {}, {"image_min_tokens": 40}):
        wanted: dict[str, Any] = {"mmproj": str(projectors["hybrid"]), **settings}
        with running_engine(tiny_models["hybrid"], **disk(tmp_path, **wanted)) as engine:
            answer = engine.ask(**fields(prompt, [(60, ONE)]))
        cached.append(answer.end.timings.cache_n)
        prompt += answer.tokens
    assert cached == [0, 120 + 45 + 3, 60 + 11]


def test_a_slot_file_holds_images(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, tmp_path: Path
) -> None:
    prompt, path = prompt_tokens(120, seed=8), str(tmp_path / "slot.bin")
    settings: dict[str, Any] = {"mmproj": str(projectors["hybrid"]), "parallel": 1}
    with running_engine(tiny_models["hybrid"], **settings) as engine:
        first = engine.ask(**fields(prompt, [(60, ONE)]))
        engine.run(engine.client.change_slot(0, "save", path))

    with running_engine(tiny_models["hybrid"], **settings) as engine:
        engine.run(engine.client.change_slot(0, "restore", path))
        longer = [*prompt, *first.tokens, *prompt_tokens(10, seed=9)]
        answer = ask(engine, longer, [(60, ONE)])

    assert answer.end.timings.prompt_n == 10 + 1


def test_what_is_cleared_is_gone_from_disk(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, tmp_path: Path
) -> None:
    settings = disk(tmp_path, mmproj=str(projectors["full"]))
    with running_engine(tiny_models["full"], **settings) as engine:
        engine.ask(**fields(prompt_tokens(60, seed=10), [(30, ONE)]))
        wait_for_embeddings(engine, tmp_path, 1)
        engine.run(engine.client.change_cache("clear"))
    assert find_embeddings(tmp_path) == []


def test_without_room_nothing_is_kept(
    tiny_models: dict[models.Kind, Path], projectors: Projectors, tmp_path: Path
) -> None:
    settings = disk(tmp_path, mmproj=str(projectors["full"]), media_cache=0)
    with running_engine(tiny_models["full"], **settings) as engine:
        for seed in (11, 12):
            answer = engine.ask(**fields(prompt_tokens(60, seed=seed), [(30, ONE)]))
            assert report(answer).num_media_encoded == 1
        with pytest.raises(InvalidRequest, match="0 bytes"):
            engine.ask(**fields(prompt_tokens(60, seed=13), [(30, ONE)], media_data={}))
    assert find_embeddings(tmp_path) == []

"""An image becomes embeddings, and a sequence that holds some is kept and restored exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests import models
from tests.media_content import Image, make_image, make_sound
from tests.projectors import KIND_OF, write_audio_projector, write_projector

from milepost.errors import ConfigurationError, InvalidRequest, LibraryMismatch, ModelFileError
from milepost.libllama import Batch, Context, ContextParams, Library, Model
from milepost.libllama.media import (
    EmbeddingBlock,
    MarkerTokens,
    MediaSize,
    Projector,
    ProjectorParams,
    check_media_abi,
    count_tokens,
)
from milepost.libllama.media_batch import MediaBatch
from milepost.libllama.state import StateIO

BEFORE, AFTER, LAST = 40, 20, 10  # tokens around the image
SIZE = MediaSize("image", 96, 64)

LoadModel = Callable[[models.Kind], Model]


@pytest.fixture(scope="session")
def projector_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[models.Kind, Path]:
    """The path of a projector for each kind of model that has one."""
    folder = tmp_path_factory.mktemp("projectors")
    return {kind: write_projector(of, folder / f"{of}.gguf") for kind, of in KIND_OF.items()}


@pytest.fixture(scope="session")
def load_projector(
    load_model: LoadModel, projector_paths: dict[models.Kind, Path]
) -> Iterator[Callable[[models.Kind], Projector]]:
    """Return a function that loads the projector for the tiny model of a kind, once."""
    loaded: dict[models.Kind, Projector] = {}

    def load(kind: models.Kind) -> Projector:
        if kind not in loaded:
            params = ProjectorParams(use_gpu=False, num_threads=1)
            loaded[kind] = Projector(load_model(kind), projector_paths[kind], params)
        return loaded[kind]

    yield load
    for projector in loaded.values():
        projector.close()


@dataclass
class Bench:
    """A context in which an image stands between tokens."""

    context: Context
    block: EmbeddingBlock
    embeddings: np.ndarray

    def __post_init__(self) -> None:
        library = self.context.model.library
        self.batch = Batch(library, 128)
        self.states = StateIO(self.context, scratch=3)
        letters = np.arange(models.token_id("a"), models.token_id("z"))
        self.tokens = np.random.default_rng(7).choice(letters, BEFORE + AFTER + LAST)
        self.after = BEFORE + self.block.num_positions  # the first position after the image

    def compute(self, seq_id: int, start: int, end: int) -> np.ndarray:
        """Compute tokens; those after the image are where it puts them."""
        pos = start if start < BEFORE else self.after + start - BEFORE
        self.batch.clear_rows()
        row = self.batch.add_tokens(self.tokens[start:end], pos, seq_id, wants_last=True)
        self.context.decode(self.batch)
        return self.context.logits(row).copy()

    def compute_image(self, seq_id: int, *cuts: int) -> None:
        """Compute the image, in as many batches as there are cuts and one more."""
        positions = self.block.positions(BEFORE)
        edges = (0, *cuts, self.block.num_tokens)
        for start, end in zip(edges, edges[1:], strict=False):
            batch = MediaBatch(
                self.context.model.library, self.embeddings[start:end], positions[:, start:end]
            )
            batch.fill(seq_id, wants_last=False)
            self.context.decode_media(batch, is_causal=self.block.is_causal)

    def compute_all(self, *cuts: int) -> np.ndarray:
        """Return the logits after everything but the last tokens."""
        self.context.clear_sequences()
        self.compute(0, 0, BEFORE)
        self.compute_image(0, *cuts)
        return self.compute(0, BEFORE, BEFORE + AFTER)

    def is_same(self, found: np.ndarray, expected: np.ndarray) -> bool:
        """Compare logits: exactly, but for a window, whose cells land elsewhere after a restore."""
        if self.context.model.num_window_tokens:
            return np.allclose(found, expected, rtol=0, atol=2e-4 * float(np.abs(expected).max()))
        return np.array_equal(found, expected)


@pytest.fixture(params=["window", "hybrid"])
def bench(
    request: pytest.FixtureRequest,
    load_model: LoadModel,
    load_projector: Callable[[models.Kind], Projector],
) -> Iterator[Bench]:
    """A bench on each kind of model that has a projector."""
    params = ContextParams(
        num_context_tokens=512,
        num_batch_tokens=128,
        num_ubatch_tokens=64,
        num_sequences=4,
        num_threads=1,
        num_threads_batch=1,
    )
    projector = load_projector(request.param)
    block = next(p for p in projector.lay_out(SIZE) if isinstance(p, EmbeddingBlock))
    (embeddings,) = projector.encode(SIZE, make_image(1).data)
    with Context(load_model(request.param), params) as context:
        bench = Bench(context, block, embeddings)
        bench.compute_all()
        assert bench.states.learn_layout(0) == "two_parts"
        yield bench


def test_an_image_of_gemma_takes_a_position_for_each_token(
    load_projector: Callable[[models.Kind], Projector],
) -> None:
    begin, image, end = load_projector("window").lay_out(SIZE)
    assert isinstance(begin, MarkerTokens)
    assert isinstance(end, MarkerTokens)
    assert isinstance(image, EmbeddingBlock)
    assert (image.num_tokens, image.num_positions, image.is_causal) == (4, 4, False)
    assert image.positions(7).tolist() == [[7, 8, 9, 10]]


def test_an_image_with_rows_and_columns_takes_fewer_positions_than_tokens(
    load_projector: Callable[[models.Kind], Projector],
) -> None:
    parts = load_projector("hybrid").lay_out(SIZE)
    image = parts[1]
    assert isinstance(image, EmbeddingBlock)
    assert (image.num_tokens, image.num_positions, image.is_causal) == (24, 6, True)
    time, row, column, rest = image.positions(7)
    assert set(time) == {7}
    assert set(rest) == {0}
    assert (row.min(), row.max(), column.min(), column.max()) == (7, 10, 7, 12)
    assert count_tokens(parts) == 24 + len(parts[0].tokens) + len(parts[2].tokens)  # type: ignore[union-attr]


def test_embeddings_follow_the_pixels(bench: Bench) -> None:
    assert bench.embeddings.shape == (bench.block.num_tokens, bench.context.model.num_embd_input)
    assert np.isfinite(bench.embeddings).all()


def test_another_image_makes_another_answer(
    bench: Bench, load_projector: Callable[[models.Kind], Projector]
) -> None:
    expected = bench.compute_all()
    kind: models.Kind = "window" if bench.context.model.num_window_tokens else "hybrid"
    (bench.embeddings,) = load_projector(kind).encode(SIZE, make_image(2).data)
    assert not np.allclose(bench.compute_all(), expected, atol=0.05)


def test_an_image_may_be_computed_in_parts(bench: Bench) -> None:
    if not bench.block.is_causal:
        pytest.skip("its tokens all see each other")
    assert np.array_equal(bench.compute_all(5, 17), bench.compute_all())


@pytest.mark.parametrize("has_text_behind", [False, True])
def test_segments_around_an_image_go_on_exactly(bench: Bench, has_text_behind: bool) -> None:
    context, states = bench.context, bench.states
    context.clear_sequences()
    bench.compute(0, 0, BEFORE)
    segments = [(0, BEFORE, states.read_segment(0, 0, BEFORE))]
    bench.compute_image(0)
    segments.append((BEFORE, bench.after, states.read_segment(0, BEFORE, bench.after)))
    pos = BEFORE
    if has_text_behind:
        bench.compute(0, BEFORE, BEFORE + AFTER)
        end = bench.after + AFTER
        segments.append((bench.after, end, states.read_segment(0, bench.after, end)))
        pos += AFTER
    partial = states.read_partial(0)
    expected = bench.compute(0, pos, pos + LAST)

    context.clear_sequences()
    for start, end, data in segments:
        states.write_segment(1, data, start, end)
    states.write_partial(1, partial)

    assert bench.is_same(bench.compute(1, pos, pos + LAST), expected)


def test_content_of_another_size_is_refused(
    load_projector: Callable[[models.Kind], Projector],
) -> None:
    image = make_image(1).cut_off()
    with pytest.raises(InvalidRequest, match="18144 bytes instead of 18432"):
        load_projector("hybrid").encode(SIZE, image.data)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1 << 16, 1), (1, 1 << 20)])
def test_impossible_sizes_are_refused(
    size: tuple[int, int], load_projector: Callable[[models.Kind], Projector]
) -> None:
    with pytest.raises(InvalidRequest, match="pixels"):
        load_projector("hybrid").lay_out(MediaSize("image", *size))


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (3000, 2), (65535, 1)])
def test_odd_sizes_can_be_encoded(
    size: tuple[int, int], load_projector: Callable[[models.Kind], Projector]
) -> None:
    for kind in KIND_OF:
        image = Image(*size, data=bytes(3 * size[0] * size[1]))
        parts = load_projector(kind).lay_out(MediaSize("image", *size))
        found = load_projector(kind).encode(MediaSize("image", *size), image.data)
        wanted = [p.num_tokens for p in parts if isinstance(p, EmbeddingBlock)]
        assert [len(one) for one in found] == wanted


def test_a_kind_that_the_projector_lacks_is_refused(
    load_projector: Callable[[models.Kind], Projector],
) -> None:
    projector = load_projector("hybrid")
    assert (projector.has_vision, projector.has_audio) == (True, False)
    with pytest.raises(InvalidRequest, match="takes no audio"):
        projector.lay_out(MediaSize("audio", num_samples=16000))


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_audio_takes_a_position_for_each_token(
    load_model: LoadModel, kind: models.Kind, tmp_path: Path
) -> None:
    path = write_audio_projector(tmp_path / "audio.gguf")
    params = ProjectorParams(use_gpu=False, num_threads=1)
    projector = Projector(load_model(kind), path, params)
    sound = make_sound(1, 16000 * 31)  # more than the half minute that is encoded at once

    parts = projector.lay_out(sound.size)
    found = projector.encode(sound.size, sound.data)

    assert (projector.has_vision, projector.has_audio) == (False, True)
    assert projector.audio_sample_rate == 16000
    assert [p.num_positions for p in parts if isinstance(p, EmbeddingBlock)] == [25, 25]
    assert parts[0].positions(7)[0].tolist() == list(range(7, 32))  # type: ignore[union-attr]
    assert [one.shape for one in found] == [(25, 64), (25, 64)]
    for num_samples in (0, 1):
        with pytest.raises(InvalidRequest, match=f"has {num_samples} samples"):
            projector.lay_out(MediaSize("audio", num_samples=num_samples))
    projector.close()


def test_a_projector_for_another_model_is_refused(load_model: LoadModel, tmp_path: Path) -> None:
    path = write_projector("gemma3", tmp_path / "wide.gguf", text_width=96)
    with pytest.raises(ConfigurationError, match=r"wide\.gguf cannot be used as a projector"):
        Projector(load_model("window"), path, ProjectorParams(use_gpu=False, num_threads=1))
    with pytest.raises(ModelFileError, match="does not exist"):
        Projector(load_model("window"), tmp_path / "none", ProjectorParams(False, 1))


def test_a_library_of_another_build_is_refused(library: Library) -> None:
    params = library.lib.mtmd_context_params_default()
    params.batch_max_tokens = 5

    class Other:
        name = "other"
        lib = type("Lib", (), {"mtmd_context_params_default": staticmethod(lambda: params)})

    with pytest.raises(LibraryMismatch, match="batch_max_tokens reads 5"):
        check_media_abi(Other())  # type: ignore[arg-type]

"""What the probe learns from a model of each memory kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import models
from tests.projectors import KIND_OF, write_projector

from milepost.engine.media.model import choose_probed
from milepost.engine.memory_probe import MemoryProbe, MemoryTraits
from milepost.libllama import Context, ContextParams, Model, ModelParams, open_library
from milepost.libllama.media import Projector, ProjectorParams
from milepost.libllama.state import StateIO


def probe(
    path: Path, *, swa_full: bool = False, projector_path: Path | None = None
) -> MemoryTraits:
    """Probe a model in a context of its own, with a media in it if there is a projector."""
    with Model(open_library(), path, ModelParams()) as model:
        params = ContextParams(
            num_context_tokens=1024,
            num_batch_tokens=256,
            num_ubatch_tokens=128,
            num_sequences=3,
            num_threads=1,
            num_threads_batch=1,
            swa_full=swa_full,
        )
        media = None
        if projector_path is not None:
            projector = Projector(model, projector_path, ProjectorParams(False, 1))
            media = choose_probed(projector, params.num_ubatch_tokens)
            assert media is not None
            projector.close()
        with Context(model, params) as context:
            states = StateIO(context, 2)
            traits = MemoryProbe(context, states, swa_full=swa_full, media=media).run()
            assert context.pos_max(0) == -1
            return traits


@pytest.mark.parametrize(
    ("kind", "can_cut", "has_segments", "has_states"),
    [
        ("full", True, True, False),
        ("window", False, True, True),
        ("recurrent", False, False, True),
        ("hybrid", False, True, True),
    ],
)
def test_a_kind_is_found_by_trying(
    tiny_models: dict[str, Path],
    kind: str,
    can_cut: bool,
    has_segments: bool,
    has_states: bool,
) -> None:
    traits = probe(tiny_models[kind])

    assert traits.kind == kind
    assert traits.can_cut == can_cut
    assert traits.has_segments == has_segments
    assert traits.has_states == has_states
    assert traits.can_restore


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_media_in_the_sequence_changes_nothing(
    tiny_models: dict[str, Path], kind: models.Kind, tmp_path: Path
) -> None:
    path = write_projector(KIND_OF[kind], tmp_path / "projector.gguf")
    with_media = probe(tiny_models[kind], projector_path=path)
    without = probe(tiny_models[kind])
    assert with_media.describe_layout() == without.describe_layout()
    assert with_media.can_cut == without.can_cut
    assert with_media.can_restore


def test_a_full_window_cache_can_be_cut(tiny_models: dict[str, Path]) -> None:
    assert probe(tiny_models["window"], swa_full=True).can_cut


def test_sizes_are_measured(tiny_models: dict[str, Path]) -> None:
    traits = probe(tiny_models["hybrid"])

    assert traits.state_bytes > 1000
    assert 10 < traits.segment_bytes_per_token < traits.state_bytes

"""States taken apart and put together again go on exactly as the original did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import StateRefused
from milepost.libllama import Batch, Context, ContextParams, Model, ModelParams, open_library
from milepost.libllama.state import StateIO

NUM_SEQUENCES = 4
SCRATCH = NUM_SEQUENCES - 1
PROMPT = np.arange(600, dtype=np.int32) % 200 + 20
CUT = 250  # not a multiple of the micro-batch


class Bench:
    """A context with the means to fill a sequence and look at its logits."""

    def __init__(self, path: Path) -> None:
        library = open_library()
        self.model = Model(library, path, ModelParams())
        params = ContextParams(
            num_context_tokens=4096,
            num_batch_tokens=512,
            num_ubatch_tokens=128,
            num_sequences=NUM_SEQUENCES,
            num_threads=1,
            num_threads_batch=1,
        )
        self.context = Context(self.model, params)
        self.batch = Batch(library, 512)
        self.states = StateIO(self.context, SCRATCH)

    def compute(self, seq_id: int, start: int, end: int) -> np.ndarray:
        """Compute positions [start, end) of the prompt and return the last logits."""
        self.batch.clear_rows()
        row = self.batch.add_tokens(PROMPT[start:end], start, seq_id, wants_last=True)
        self.context.decode(self.batch)
        return self.context.logits(row).copy()

    def compute_prompt(self) -> np.ndarray:
        """Compute all of the prompt in sequence 0, cut at CUT and 500."""
        self.compute(0, 0, CUT)
        self.compute(0, CUT, 500)
        return self.compute(0, 500, 600)

    def is_same(self, found: np.ndarray, expected: np.ndarray) -> bool:
        """Compare logits: exactly, but for a window, whose cells land elsewhere after a restore."""
        if self.model.num_window_tokens:
            return np.allclose(found, expected, rtol=0, atol=2e-4 * float(np.abs(expected).max()))
        return np.array_equal(found, expected)

    def close(self) -> None:
        """Free everything."""
        self.context.close()
        self.model.close()


@pytest.fixture(params=["full", "window", "recurrent", "hybrid"])
def bench(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Bench]:
    """A bench on a tiny model of each memory kind."""
    bench = Bench(tiny_models[request.param])
    yield bench
    bench.close()


@pytest.fixture(params=["window", "hybrid"])
def split_bench(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Iterator[Bench]:
    """A bench on the kinds whose state has both parts."""
    bench = Bench(tiny_models[request.param])
    bench.compute(0, 0, 40)
    assert bench.states.learn_layout(0) == "two_parts"
    bench.context.clear_sequences()
    yield bench
    bench.close()


def test_a_whole_state_goes_on_exactly(bench: Bench) -> None:
    expected = bench.compute_prompt()
    bench.context.clear_sequences()
    bench.compute(0, 0, CUT)
    bench.compute(0, CUT, 500)
    state = bench.states.read_whole(0)
    bench.context.clear_sequences()

    bench.states.write_whole(0, state)

    assert bench.is_same(bench.compute(0, 500, 600), expected)


def test_segments_and_a_partial_state_go_on_exactly(split_bench: Bench) -> None:
    expected = split_bench.compute_prompt()
    split_bench.context.clear_sequences()
    split_bench.compute(0, 0, CUT)
    first = split_bench.states.read_segment(0, 0, CUT)
    split_bench.compute(0, CUT, 500)
    second = split_bench.states.read_segment(0, CUT, 500)
    partial = split_bench.states.read_partial(0)
    split_bench.context.clear_sequences()

    split_bench.states.write_segment(0, first, 0, CUT)
    split_bench.states.write_segment(0, second, CUT, 500)
    split_bench.states.write_partial(0, partial)

    assert split_bench.is_same(split_bench.compute(0, 500, 600), expected)


@pytest.mark.parametrize("kind", ["full", "recurrent"])
def test_other_kinds_have_one_part(kind: str, tiny_models: dict[str, Path]) -> None:
    bench = Bench(tiny_models[kind])
    bench.compute(0, 0, 40)

    assert bench.states.learn_layout(0) == "one_part"

    bench.close()


def test_full_attention_goes_on_from_segments(tiny_models: dict[str, Path]) -> None:
    bench = Bench(tiny_models["full"])
    expected = bench.compute_prompt()
    assert bench.states.learn_layout(0) == "one_part"
    first, second = bench.states.read_segment(0, 0, CUT), bench.states.read_segment(0, CUT, 550)
    bench.context.clear_sequences()

    bench.states.write_segment(0, first, 0, CUT)
    bench.states.write_segment(0, second, CUT, 500)

    assert np.array_equal(bench.compute(0, 500, 600), expected)
    bench.close()


def test_the_first_part_of_a_segment_can_be_used(split_bench: Bench) -> None:
    split_bench.compute(0, 0, CUT)
    partial = split_bench.states.read_partial(0)
    expected = split_bench.compute(0, CUT, 500)
    segment = split_bench.states.read_segment(0, 0, 500)
    split_bench.context.clear_sequences()

    split_bench.states.write_segment(0, segment, 0, CUT)
    split_bench.states.write_partial(0, partial)

    assert split_bench.context.pos_max(0) == CUT - 1
    assert np.allclose(split_bench.compute(0, CUT, 500), expected, atol=0.05)  # another layout


def test_a_segment_is_smaller_than_the_whole(split_bench: Bench) -> None:
    split_bench.compute(0, 0, CUT)

    half = split_bench.states.read_segment(0, 0, CUT // 2)

    assert len(half) < len(split_bench.states.read_whole(0)) * 0.6
    assert split_bench.context.pos_max(SCRATCH) == -1


@pytest.mark.parametrize("num_bytes", [0, 3, 40, -5])
def test_a_cut_state_is_refused(bench: Bench, num_bytes: int) -> None:
    bench.compute(0, 0, 100)
    state = bench.states.read_whole(0)

    with pytest.raises(StateRefused):
        bench.states.write_whole(1, state[:num_bytes].copy())


def test_a_state_of_another_model_is_refused(tiny_models: dict[str, Path]) -> None:
    full, hybrid = Bench(tiny_models["full"]), Bench(tiny_models["hybrid"])
    full.compute(0, 0, 100)

    with pytest.raises(StateRefused):
        hybrid.states.write_whole(0, full.states.read_whole(0))

    full.close()
    hybrid.close()

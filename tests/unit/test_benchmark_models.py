"""The benchmarks' models are what their numbers rest on."""

from pathlib import Path

import gguf
import pytest
from benchmarks.models import (
    SHAPES,
    choose_tight_cache_ram_mib,
    measure_memory,
    read_vocabulary,
    write_benchmark_model,
)
from tests.models import (
    DEFAULT_TEMPLATE,
    KINDS,
    TURN_END,
    Kind,
    Recipe,
    Shape,
    token_id,
    write_model,
    write_recipe,
)


def test_hybrid_state_is_as_large_as_the_kv_of_2400_tokens() -> None:
    sizes = measure_memory("hybrid")
    assert sizes.kv_bytes_per_token == 512
    assert sizes.state_bytes / sizes.kv_bytes_per_token == pytest.approx(2400, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "budget_mib"), [("full", 126), ("window", 31), ("recurrent", 12), ("hybrid", 63)]
)
def test_tight_budget_holds_the_kv_of_130000_tokens(kind: Kind, budget_mib: int) -> None:
    assert choose_tight_cache_ram_mib(kind) == budget_mib


def test_shapes_exist_for_every_memory_kind() -> None:
    assert set(SHAPES) == set(KINDS)
    assert all(shape.context >= 36_000 for shape in SHAPES.values())


def test_a_vocabulary_is_taken_over_without_its_template(tmp_path: Path) -> None:
    source = write_model("full", tmp_path / "source.gguf", template="{{ 'theirs' }}")
    recipe = Recipe("hybrid", vocabulary=read_vocabulary(source))
    fields = gguf.GGUFReader(write_recipe(recipe, tmp_path / "copy.gguf")).fields
    theirs = gguf.GGUFReader(source).fields
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
        assert fields[key].contents() == theirs[key].contents()
    assert fields["tokenizer.ggml.eos_token_id"].contents() == token_id(TURN_END)
    assert fields["tokenizer.chat_template"].contents() == DEFAULT_TEMPLATE


def test_quantized_matrices_take_a_quarter(tmp_path: Path) -> None:
    plain = write_model("hybrid", tmp_path / "plain.gguf").stat().st_size
    recipe = Recipe("hybrid", shape=Shape(is_quantized=True))
    assert write_recipe(recipe, tmp_path / "small.gguf").stat().st_size < plain / 2.5


def test_written_model_has_the_real_vocabulary(tmp_path: Path) -> None:
    path = write_benchmark_model("recurrent", tmp_path / "new" / "folder")
    fields = gguf.GGUFReader(path).fields
    assert len(fields["tokenizer.ggml.tokens"].data) == 49152
    assert 20e6 < path.stat().st_size < 40e6

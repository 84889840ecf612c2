"""The models of the benchmarks: random weights, real vocabulary, written on the spot.

    python -m benchmarks.models [--folder FOLDER]

One of every memory kind, of a size that prefills thousands of tokens per second on two cores. What
a cache has to cope with is as in life: token counts are SmolLM2's, the hybrid's state is as large
as the KV of 2,400 tokens (as with the 27B of its family), the window model keeps the whole context
in one layer of six. Architectures and the template are those of the tests' tiny models.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
from tests.models import (
    CONV_KERNEL,
    KINDS,
    MAMBA_STATE,
    Kind,
    Recipe,
    Shape,
    Vocabulary,
    write_recipe,
)
from tests.projectors import KIND_OF, write_projector

from milepost.cli.demo_model import INSTALL, find_demo_model

CONTEXT = 131072
KV_ELEMENT_BYTES = 2  # f16, the default of both servers
STATE_ELEMENT_BYTES = 4
TIGHT_BUDGET_TOKENS = 130_000  # a few sessions of 30,000 tokens, or one day's text: it binds
# A recurrent model has no KV; a state of its counts as so many tokens, as the hybrid's does.
TOKENS_PER_STATE = 2400

# Few heads: at 20,000 tokens of context attention is most of the work.
_COMMON = Shape(
    embd=256,
    layers=6,
    ff=512,
    heads=2,
    kv_heads=1,
    head_dim=64,
    window=512,
    context=CONTEXT,
    window_interval=6,
    hybrid_interval=4,
    delta_state=128,
    delta_heads=3,
    is_quantized=True,
)
SHAPES: dict[Kind, Shape] = {
    "full": replace(_COMMON, layers=4),
    "window": _COMMON,
    "recurrent": _COMMON,
    "hybrid": replace(_COMMON, layers=8),
}


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """What a sequence of a model takes in its context's memory."""

    kv_bytes_per_token: int  # of the layers that keep the whole context
    state_bytes: int  # recurrent state of one sequence; 0 without one


def main() -> None:
    """Write all models and print what they need."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = Path(tempfile.gettempdir()) / "milepost-benchmark-models"
    parser.add_argument("--folder", type=Path, default=default, help="default: %(default)s")
    arguments = parser.parse_args()
    for kind in KINDS:
        path = write_benchmark_model(kind, arguments.folder)
        sizes = measure_memory(kind)
        print(
            f"{path}: {path.stat().st_size / 1e6:.1f} MB, {sizes.kv_bytes_per_token} bytes of KV "
            f"per token, {sizes.state_bytes} bytes of state, tight budget "
            f"{choose_tight_cache_ram_mib(kind)} MiB"
        )


def write_benchmark_model(kind: Kind, folder: Path) -> Path:
    """Write the benchmark's model of a memory kind into a folder and return its path.

    Raises FileNotFoundError when the package with the vocabulary is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = find_demo_model()
    if source is None:
        raise FileNotFoundError(f"SmolLM2's vocabulary is needed; run: {INSTALL}")
    recipe = Recipe(kind, shape=SHAPES[kind], vocabulary=read_vocabulary(source))
    return write_recipe(recipe, folder / f"benchmark-{kind}.gguf")


def write_benchmark_projector(kind: Kind, folder: Path) -> Path:
    """Write the projector of the model of a memory kind into a folder and return its path."""
    path = folder / f"benchmark-mmproj-{kind}.gguf"
    return write_projector(KIND_OF[kind], path, text_width=SHAPES[kind].embd)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a GGUF, without its chat template."""
    fields = {
        key: (field.contents(), field.types[0])
        for key, field in gguf.GGUFReader(path).fields.items()
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template"
    }

    def add_to(writer: gguf.GGUFWriter) -> None:
        for key, (value, kind) in fields.items():
            if kind == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, kind)

    tokens, _ = fields["tokenizer.ggml.tokens"]
    return Vocabulary(tokens, add_to)


def measure_memory(kind: Kind) -> MemorySizes:
    """Return what a sequence of the benchmark's model takes."""
    shape = SHAPES[kind]
    if kind == "recurrent":
        return MemorySizes(0, shape.layers * _mamba_state_bytes(shape))
    full_layers = {
        "full": shape.layers,
        "window": shape.layers // shape.window_interval,
        "hybrid": shape.layers // shape.hybrid_interval,
    }[kind]
    kv_bytes = full_layers * shape.kv_heads * shape.head_dim * 2 * KV_ELEMENT_BYTES
    if kind != "hybrid":
        return MemorySizes(kv_bytes, 0)
    return MemorySizes(kv_bytes, (shape.layers - full_layers) * _delta_state_bytes(shape))


def choose_tight_cache_ram_mib(kind: Kind) -> int:
    """Return the RAM budget that holds the KV of `TIGHT_BUDGET_TOKENS`, in whole MiB."""
    sizes = measure_memory(kind)
    if sizes.kv_bytes_per_token:
        return sizes.kv_bytes_per_token * TIGHT_BUDGET_TOKENS >> 20
    return sizes.state_bytes * TIGHT_BUDGET_TOKENS // TOKENS_PER_STATE >> 20


def _delta_state_bytes(shape: Shape) -> int:
    values = shape.delta_state * shape.delta_heads
    mixed = 2 * shape.delta_state * shape.delta_groups + values
    return STATE_ELEMENT_BYTES * (shape.delta_state * values + (CONV_KERNEL - 1) * mixed)


def _mamba_state_bytes(shape: Shape) -> int:
    inner = 2 * shape.embd
    return STATE_ELEMENT_BYTES * inner * (MAMBA_STATE + CONV_KERNEL - 1)


if __name__ == "__main__":
    main()

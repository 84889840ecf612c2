"""Tiny projectors with random weights, written as GGUF on the spot.

`gemma3` goes with the window model: a few tokens an image, which all see each other. `qwen3vl` goes
with the hybrid: as many tokens as the image is large, at positions of rows and columns, so that it
takes fewer positions than tokens. `ultravox` hears: 25 tokens each half minute of audio, and no
marks of begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from tests import models

ProjectorKind = Literal["gemma3", "qwen3vl"]
AudioKind = Literal["ultravox"]

WIDTH, LAYERS, FEED_FORWARD, HEADS = 32, 1, 64, 2
MERGE = 2  # of qwen3vl: so many patches a side become one token
MEL_BINS = 80  # of audio, in 3,000 frames for half a minute
MEL_FRAMES = 3000
STACK = 60  # of these frames, halved once, so many become one token
QUERY_GAIN = 3.0  # sharp attention, as in the models: a part of an image must matter
KIND_OF: dict[models.Kind, ProjectorKind] = {
    "full": "gemma3",
    "window": "gemma3",
    "recurrent": "gemma3",
    "hybrid": "qwen3vl",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Pixels a side of the image that positions are learnt for, and of a patch."""

    image: int
    patch: int


GRIDS: dict[ProjectorKind, Grid] = {"gemma3": Grid(64, 8), "qwen3vl": Grid(64, 8)}


def write_projector(
    kind: ProjectorKind, path: Path, *, text_width: int = models.Shape().embd, seed: int = 0
) -> Path:
    """Write a projector for a text model of that width to `path` and return it."""
    writer = gguf.GGUFWriter(path, "clip")
    grid = GRIDS[kind]
    _add_sizes(writer, kind, grid, text_width)
    weights = _Tensors(writer, np.random.default_rng(seed))
    weights.random("v.patch_embd.weight", WIDTH, 3, grid.patch, grid.patch)
    if kind == "qwen3vl":  # of two frames
        weights.random("v.patch_embd.weight.1", WIDTH, 3, grid.patch, grid.patch)
    weights.fill("v.patch_embd.bias", WIDTH, 0.0)
    weights.random("v.position_embd.weight", (grid.image // grid.patch) ** 2, WIDTH)
    for layer in range(LAYERS):
        _add_layer(weights, kind, f"v.blk.{layer}.")
    weights.norm("v.post_ln")
    _add_exit(weights, kind, text_width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_audio_projector(
    path: Path, *, text_width: int = models.Shape().embd, seed: int = 0
) -> Path:
    """Write a projector for audio to `path` and return it."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    sizes = {
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "projection_dim": text_width,
        "num_mel_bins": MEL_BINS,
        "projector.stack_factor": STACK,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"clip.audio.{name}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    weights = _Tensors(writer, np.random.default_rng(seed))
    weights.convolution("a.conv1d.1", MEL_BINS)
    weights.convolution("a.conv1d.2", WIDTH)
    weights.random("a.position_embd.weight", MEL_FRAMES // 2, WIDTH)
    for layer in range(LAYERS):
        _add_layer(weights, "ultravox", f"a.blk.{layer}.")
    weights.norm("a.post_ln")
    stacked = STACK * WIDTH
    weights.fill("mm.a.norm_pre.weight", stacked, 1.0)
    weights.random("mm.a.mlp.1.weight", 2 * WIDTH, stacked)
    weights.fill("mm.a.norm_mid.weight", WIDTH, 1.0)
    weights.random("mm.a.mlp.2.weight", text_width, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, kind: ProjectorKind, grid: Grid, text_width: int) -> None:
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3" if kind == "gemma3" else "qwen3vl_merger")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "image_size": grid.image,
        "patch_size": grid.patch,
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "projection_dim": text_width,
    }
    if kind == "qwen3vl":
        sizes["spatial_merge_size"] = MERGE
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])


def _add_layer(weights: _Tensors, kind: ProjectorKind | AudioKind, prefix: str) -> None:
    weights.norm(prefix + "ln1")
    weights.norm(prefix + "ln2")
    if kind == "qwen3vl":
        weights.linear(prefix + "attn_qkv", WIDTH, 3 * WIDTH, QUERY_GAIN)
    else:
        for part in "qkv":
            weights.random(f"{prefix}attn_{part}.weight", WIDTH, WIDTH, gain=QUERY_GAIN)
            if kind != "ultravox" or part != "k":
                weights.fill(f"{prefix}attn_{part}.bias", WIDTH, 0.0)
    weights.linear(prefix + "attn_out", WIDTH, WIDTH)
    weights.linear(prefix + "ffn_up", WIDTH, FEED_FORWARD)
    weights.linear(prefix + "ffn_down", FEED_FORWARD, WIDTH)


def _add_exit(weights: _Tensors, kind: ProjectorKind, text_width: int) -> None:
    if kind == "gemma3":
        weights.random("mm.input_projection.weight", WIDTH, text_width)
        weights.fill("mm.soft_emb_norm.weight", WIDTH, 1.0)
        return
    merged = MERGE**2 * WIDTH
    weights.linear("mm.0", merged, merged)
    weights.linear("mm.2", merged, text_width)


class _Tensors:
    """Adds tensors; shapes as numpy has them, the dimension that is summed over last."""

    def __init__(self, writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
        self._writer = writer
        self._random = random

    def random(self, name: str, *dims: int, gain: float = 1.0) -> None:
        values = self._random.standard_normal(dims, dtype=np.float32)
        scale = np.float32(gain * float(np.prod(dims[1:])) ** -0.5)
        self._writer.add_tensor(name, values * scale)

    def fill(self, name: str, size: int, value: float) -> None:
        self._writer.add_tensor(name, np.full(size, value, np.float32))

    def convolution(self, name: str, inputs: int) -> None:
        values = self._random.standard_normal((WIDTH, inputs, 3)) * (3 * inputs) ** -0.5
        self._writer.add_tensor(name + ".weight", values.astype(np.float16))
        self._writer.add_tensor(name + ".bias", np.zeros((WIDTH, 1), np.float32))

    def linear(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self.random(name + ".weight", outputs, inputs, gain=gain)
        self.fill(name + ".bias", outputs, 0.0)

    def norm(self, name: str) -> None:
        self.fill(name + ".weight", WIDTH, 1.0)
        self.fill(name + ".bias", WIDTH, 0.0)

"""Tiny models with random weights, one of every memory kind, written as GGUF on the spot.

By default each has a byte-level BPE vocabulary of its own (the benchmarks pass a real one and
larger shapes), a ChatML template with tools and reasoning, and weights that make it behave like a
chat model where tests need that: it answers with printable text, goes on for tens of tokens (a
`logit_bias` on `TURN_END` ends it), and every next token depends on the whole prompt. The same
recipe gives the same bytes.

A bias per token makes the text printable. None of these architectures has one, so the first
component of the hidden state is kept as a constant: every embedding has it, no block writes to it,
and the first column of the output matrix thereby is the bias.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import numpy.typing as npt

Kind = Literal["full", "window", "recurrent", "hybrid"]
Architecture = Kind | Literal["full_rows"]  # the last: full attention with M-RoPE
Array = npt.NDArray[np.float32]

DEFAULT_TEMPLATE = (Path(__file__).parent / "samples" / "chatml.jinja").read_text("utf-8")

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
USER_DEFINED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

# Common pairs of English, joined in this order; a space before a word is written as "_".
_MERGE_LIST = """
t+h h+e i+n e+r a+n r+e o+n a+t e+n n+d t+i e+s o+r t+e o+f e+d i+s i+t a+l a+r s+t t+o n+t
th+e _+the an+d _+and in+g o+u _+t _+a _+s _+w _+of _+to _+in _+is l+l v+e h+a _+y _y+ou th+at
en+t i+on ti+on er+s f+or _+for w+i wi+th _+with a+s _+as b+e _+be m+e _+me h+i th+is
"""
MERGES = tuple((left, right) for left, right in (m.split("+") for m in _MERGE_LIST.split()))

LETTER_BIAS = 0.0
END_BIAS = -2.5  # found by trying: the first 40 tokens seldom have an end, a thousand mostly do
PUNCTUATION_BIAS = -2.0
UNWANTED_BIAS = -30.0  # control characters, parts of other characters, the other special tokens
LOGIT_SPREAD = 3.0  # standard deviation of a logit over contexts; much less makes all alike
ATTENTION_GAIN = 2.0  # sharp attention, so that single far tokens can change the answer

MAMBA_STATE = 16
CONV_KERNEL = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model; the default is as small as the tests of behaviour need."""

    embd: int = 64
    layers: int = 4
    ff: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int = 32  # tokens seen by the window model's sliding layers
    context: int = 8192  # tokens the model claims to have been trained for
    window_interval: int = 3  # every so many layers of the window model see the whole context
    hybrid_interval: int = 2  # every so many layers of the hybrid have attention
    delta_state: int = 64  # components of a key and of a value in the hybrid's linear attention
    delta_groups: int = 1  # heads of its keys
    delta_heads: int = 2  # heads of its values
    is_quantized: bool = False  # matrices as Q8_0 instead of F32


# Its heads are as wide together as the hidden state, which some architectures want.
SQUARE = Shape(heads=2, kv_heads=1)
# Much attention and few weights: 9 MB, but seconds for a prompt of 4,000 tokens on two cores.
SLOW = Shape(embd=128, layers=4, ff=512, heads=16, kv_heads=2, head_dim=64)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, and how a GGUF states them."""

    tokens: Sequence[str]  # in the order of their ids, as the GGUF spells them
    add_to: Callable[[gguf.GGUFWriter], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a model is made from."""

    kind: Architecture
    seed: int = 0
    shape: Shape = field(default_factory=Shape)
    template: str = DEFAULT_TEMPLATE  # empty: the model has none
    vocabulary: Vocabulary | None = None  # None: the tiny one of this module


def write_model(
    kind: Architecture,
    path: Path,
    *,
    seed: int = 0,
    shape: Shape | None = None,
    template: str = DEFAULT_TEMPLATE,
) -> Path:
    """Write a tiny model of a memory kind to `path` and return it; replaces a file that is there.

    An empty `template` leaves the model without one.
    """
    return write_recipe(Recipe(kind, seed, shape or Shape(), template), path)


def write_recipe(recipe: Recipe, path: Path) -> Path:
    """Write the model of a recipe to `path` and return it; replaces a file that is there."""
    architecture, add_layers = _ARCHITECTURES[recipe.kind]
    shape = recipe.shape
    words = recipe.vocabulary or Vocabulary(vocabulary(), add_vocabulary)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"milepost tiny {recipe.kind}")
    words.add_to(writer)
    if recipe.template:
        writer.add_chat_template(recipe.template)
    _add_sizes(writer, shape)
    weights = _Weights(writer, np.random.default_rng(recipe.seed), shape.is_quantized)
    rms = shape.embd**-0.5 if recipe.kind == "window" else 1.0
    weights.add_embedding(_token_biases(words.tokens), shape.embd, rms)
    add_layers(writer, weights, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary() -> list[str]:
    """Return the texts of all tokens in the order of their ids, as the GGUF spells them."""
    return [*_byte_letters(), *("".join(pair) for pair in _merges()), *_special_tokens()]


def token_id(text: str) -> int:
    """Return the id of a token by its text, e.g. `TURN_END`; ValueError when there is none."""
    return vocabulary().index(text)


def _special_tokens() -> tuple[str, ...]:
    return CONTROL_TOKENS + USER_DEFINED_TOKENS


def _merges() -> Iterator[tuple[str, str]]:
    space = _byte_letters()[ord(" ")]
    for left, right in MERGES:
        yield left.replace("_", space), right


def _byte_letters() -> list[str]:
    """Return GPT-2's letter for each byte: itself where it is visible, else the next free one."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(visible)))
    return [letters[byte] for byte in range(256)]


def add_vocabulary(writer: gguf.GGUFWriter, more_controls: Sequence[str] = ()) -> None:
    """State the tokens of `vocabulary`, and further control tokens after them."""
    tokens = vocabulary()
    num_normal = len(tokens) - len(_special_tokens())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *more_controls])
    writer.add_token_types(
        [gguf.TokenType.NORMAL] * num_normal
        + [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
        + [gguf.TokenType.USER_DEFINED] * len(USER_DEFINED_TOKENS)
        + [gguf.TokenType.CONTROL] * len(more_controls)
    )
    writer.add_token_merges([" ".join(pair) for pair in _merges()])
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)


def _token_biases(tokens: Sequence[str]) -> Array:
    """Return for each token what is added to its logit."""
    space = _byte_letters()[ord(" ")]
    newline = _byte_letters()[ord("\n")]

    def choose_bias(text: str) -> float:
        if text == TURN_END:
            return END_BIAS
        if set(text) <= {*string.ascii_letters, space}:
            return LETTER_BIAS
        if text == newline or (len(text) == 1 and text in string.punctuation + string.digits):
            return PUNCTUATION_BIAS
        return UNWANTED_BIAS

    return np.array([choose_bias(text) for text in tokens], np.float32)


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_layer_norm_rms_eps(1e-6)


def _add_attention_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)


class _Weights:
    """Adds tensors; `inputs` is the dimension that is summed over."""

    def __init__(
        self, writer: gguf.GGUFWriter, random: np.random.Generator, is_quantized: bool
    ) -> None:
        self._writer = writer
        self._random = random
        self._is_quantized = is_quantized

    def add_embedding(self, biases: Array, embd: int, rms: float) -> None:
        """Add the input and output matrices, with the constant and the bias as first column."""
        embedding = self._draw(len(biases), embd)
        embedding[:, 0] = 1.0
        output = self._draw(len(biases), embd) * (LOGIT_SPREAD * embd**-0.5)
        output[:, 0] = biases
        self._add_matrix("token_embd.weight", embedding * np.float32(rms))
        self._add_matrix("output.weight", output)
        # The norm shrinks the constant as the blocks add to the state: by half, or thereabouts.
        scale = np.ones(embd, np.float32)
        scale[0] = 2.0
        self.add("output_norm.weight", scale)

    def project(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self._add_matrix(name, self._draw(outputs, inputs) * np.float32(gain * inputs**-0.5))

    def project_back(self, name: str, inputs: int, outputs: int) -> None:
        """Add a projection into the hidden state, which must leave the constant alone."""
        weight = self._draw(outputs, inputs) * np.float32(inputs**-0.5)
        weight[0] = 0.0
        self._add_matrix(name, weight)

    def fill(self, name: str, size: int, value: float = 1.0) -> None:
        self.add(name, np.full(size, value, np.float32))

    def random(self, name: str, *dims: int, scale: float = 1.0) -> None:
        self.add(name, self._draw(*dims) * np.float32(scale))

    def add(self, name: str, values: Array) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def attention(self, prefix: str, shape: Shape, *, query_parts: int = 1) -> None:
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sharp = ATTENTION_GAIN
        self.project(prefix + "attn_q.weight", shape.embd, width * query_parts, sharp)
        self.project(prefix + "attn_k.weight", shape.embd, kv_width)
        self.project(prefix + "attn_v.weight", shape.embd, kv_width)
        self.project_back(prefix + "attn_output.weight", width, shape.embd)

    def query_key_norms(self, prefix: str, shape: Shape) -> None:
        self.fill(prefix + "attn_q_norm.weight", shape.head_dim, ATTENTION_GAIN)
        self.fill(prefix + "attn_k_norm.weight", shape.head_dim)

    def feed_forward(self, prefix: str, shape: Shape) -> None:
        self.project(prefix + "ffn_gate.weight", shape.embd, shape.ff)
        self.project(prefix + "ffn_up.weight", shape.embd, shape.ff)
        self.project_back(prefix + "ffn_down.weight", shape.ff, shape.embd)

    def _add_matrix(self, name: str, values: Array) -> None:
        kind = gguf.GGMLQuantizationType.Q8_0
        if self._is_quantized and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            self._writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.add(name, values)

    def _draw(self, *dims: int) -> Array:
        return self._random.standard_normal(dims, dtype=np.float32)


def _add_llama_layers(writer: gguf.GGUFWriter, weights: _Weights, shape: Shape) -> None:
    _add_attention_sizes(writer, shape)
    writer.add_rope_dimension_count(shape.head_dim)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        weights.fill(prefix + "attn_norm.weight", shape.embd)
        weights.attention(prefix, shape)
        weights.fill(prefix + "ffn_norm.weight", shape.embd)
        weights.feed_forward(prefix, shape)


def _add_qwen2vl_layers(writer: gguf.GGUFWriter, weights: _Weights, shape: Shape) -> None:
    pairs = shape.head_dim // 2
    writer.add_rope_dimension_sections([pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0])
    _add_llama_layers(writer, weights, shape)


def _add_gemma3_layers(writer: gguf.GGUFWriter, weights: _Weights, shape: Shape) -> None:
    _add_attention_sizes(writer, shape)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(shape.window)
    writer.add_sliding_window_pattern(shape.window_interval)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.fill(f"{prefix}{norm}.weight", shape.embd)
        weights.attention(prefix, shape)
        weights.query_key_norms(prefix, shape)
        weights.feed_forward(prefix, shape)


def _add_mamba_layers(writer: gguf.GGUFWriter, weights: _Weights, shape: Shape) -> None:
    inner, rank = 2 * shape.embd, max(1, shape.embd // 16)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(MAMBA_STATE)
    writer.add_ssm_time_step_rank(rank)
    decay = -np.arange(1, MAMBA_STATE + 1, dtype=np.float32) / MAMBA_STATE
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        weights.fill(prefix + "attn_norm.weight", shape.embd)
        weights.project(prefix + "ssm_in.weight", shape.embd, 2 * inner)
        weights.random(prefix + "ssm_conv1d.weight", inner, CONV_KERNEL, scale=0.5)
        weights.fill(prefix + "ssm_conv1d.bias", inner, 0.0)
        weights.project(prefix + "ssm_x.weight", inner, rank + 2 * MAMBA_STATE, gain=2.0)
        weights.project(prefix + "ssm_dt.weight", rank, inner)
        weights.fill(prefix + "ssm_dt.bias", inner, 0.1)
        weights.add(prefix + "ssm_a", np.tile(decay, (inner, 1)))
        weights.fill(prefix + "ssm_d", inner)
        weights.project_back(prefix + "ssm_out.weight", inner, shape.embd)


def _add_qwen35_layers(writer: gguf.GGUFWriter, weights: _Weights, shape: Shape) -> None:
    _add_attention_sizes(writer, shape)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(shape.head_dim // 4)
    # Of the pairs of components: by time, row and column. For text all three are the same.
    pairs = shape.head_dim // 8
    writer.add_rope_dimension_sections([pairs - 2 * (pairs // 4), pairs // 4, pairs // 4, 0])
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_inner_size(shape.delta_state * shape.delta_heads)
    writer.add_ssm_state_size(shape.delta_state)
    writer.add_ssm_time_step_rank(shape.delta_heads)
    writer.add_ssm_group_count(shape.delta_groups)
    writer.add_full_attention_interval(shape.hybrid_interval)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        weights.fill(prefix + "attn_norm.weight", shape.embd)
        weights.fill(prefix + "post_attention_norm.weight", shape.embd)
        if (layer + 1) % shape.hybrid_interval == 0:
            weights.attention(prefix, shape, query_parts=2)  # the query and its output gate
            weights.query_key_norms(prefix, shape)
        else:
            _add_delta_net(weights, prefix, shape)
        weights.feed_forward(prefix, shape)


def _add_delta_net(weights: _Weights, prefix: str, shape: Shape) -> None:
    embd, heads = shape.embd, shape.delta_heads
    keys, values = shape.delta_state * shape.delta_groups, shape.delta_state * heads
    mixed = 2 * keys + values
    weights.project(prefix + "attn_qkv.weight", embd, mixed)
    weights.project(prefix + "attn_gate.weight", embd, values)
    weights.random(prefix + "ssm_conv1d.weight", mixed, CONV_KERNEL, scale=0.5)
    weights.random(prefix + "ssm_dt.bias", heads)
    weights.add(prefix + "ssm_a", -np.geomspace(0.02, 0.5, heads).astype(np.float32))
    weights.project(prefix + "ssm_beta.weight", embd, heads)
    weights.project(prefix + "ssm_alpha.weight", embd, heads)
    weights.fill(prefix + "ssm_norm.weight", shape.delta_state)
    weights.project_back(prefix + "ssm_out.weight", values, embd)


_AddLayers = Callable[[gguf.GGUFWriter, _Weights, Shape], None]
_ARCHITECTURES: dict[Architecture, tuple[str, _AddLayers]] = {
    "full": ("llama", _add_llama_layers),
    "full_rows": ("qwen2vl", _add_qwen2vl_layers),
    "window": ("gemma3", _add_gemma3_layers),
    "recurrent": ("mamba", _add_mamba_layers),
    "hybrid": ("qwen35", _add_qwen35_layers),
}
KINDS: tuple[Kind, ...] = ("full", "window", "recurrent", "hybrid")

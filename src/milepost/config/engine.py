"""What an engine process needs to know; crosses the socket as msgpack inside `Load`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from milepost.config.flag import Flag, setting
from milepost.config.media import MediaSettings
from milepost.kinds import CacheType, FlashAttention, LoadMode, RopeScaling, SplitMode

AUTO_PARALLEL = (
    4  # what llama-server takes for `--parallel -1`, with a unified KV as we always have
)
ALL_LAYERS = -2  # n_gpu_layers: every layer, whatever the memory; -1 lets the library choose


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(MediaSettings):
    """What an engine process needs to load a model and make its context."""

    model_path: str = ""  # from ModelSource
    ctx_size: int = setting(
        0,
        Flag(
            names="-c --ctx-size",
            env="LLAMA_ARG_CTX_SIZE",
            group="Context",
            unit="tokens",
            minimum=0,
            maximum=2**24,  # llama.cpp makes its table of cells before it asks for the memory
            shown_default="0: the model's training context",
            help="Size of the context, shared by all parallel requests.",
        ),
    )
    parallel: int = setting(
        AUTO_PARALLEL,
        Flag(
            names="-np --parallel",
            env="LLAMA_ARG_N_PARALLEL",
            group="Context",
            kind="parallel",
            minimum=1,
            maximum=256,
            shown_default=f"-1: automatic, {AUTO_PARALLEL}",
            help="Number of requests that are decoded at the same time.",
        ),
    )
    batch_size: int = setting(
        2048,
        Flag(
            names="-b --batch-size",
            env="LLAMA_ARG_BATCH",
            group="Context",
            unit="tokens",
            minimum=1,
            help="Largest logical batch.",
        ),
    )
    ubatch_size: int = setting(
        512,
        Flag(
            names="-ub --ubatch-size",
            env="LLAMA_ARG_UBATCH",
            group="Context",
            unit="tokens",
            minimum=1,
            help="Largest physical batch; --batch-size limits it.",
        ),
    )
    cache_type_k: CacheType = setting(
        "f16",
        Flag(
            names="-ctk --cache-type-k",
            env="LLAMA_ARG_CACHE_TYPE_K",
            group="Context",
            choices=get_args(CacheType),
            help="Data type of the keys in the KV cache.",
        ),
    )
    cache_type_v: CacheType = setting(
        "f16",
        Flag(
            names="-ctv --cache-type-v",
            env="LLAMA_ARG_CACHE_TYPE_V",
            group="Context",
            choices=get_args(CacheType),
            help="Data type of the values in the KV cache.",
        ),
    )
    flash_attn: FlashAttention = setting(
        "auto",
        Flag(
            names="-fa --flash-attn",
            env="LLAMA_ARG_FLASH_ATTN",
            group="Context",
            kind="tristate",
            choices=get_args(FlashAttention),
            help="Use flash attention.",
        ),
    )
    swa_full: bool = setting(
        False,
        Flag(
            names="--swa-full",
            env="LLAMA_ARG_SWA_FULL",
            group="Context",
            help="Keep the whole context of sliding-window layers: more memory, any prefix "
            "can be reused.",
        ),
    )
    threads: int = setting(
        -1,
        Flag(
            names="-t --threads",
            env="LLAMA_ARG_THREADS",
            group="Compute",
            minimum=-1,
            maximum=512,
            shown_default="-1: one per physical core",
            help="CPU threads for decoding.",
        ),
    )
    threads_batch: int = setting(
        -1,
        Flag(
            names="-tb --threads-batch",
            group="Compute",
            minimum=-1,
            maximum=512,
            shown_default="-1: as --threads",
            help="CPU threads for prefill.",
        ),
    )
    n_gpu_layers: int = setting(
        -1,
        Flag(
            names="-ngl --gpu-layers --n-gpu-layers",
            env="LLAMA_ARG_N_GPU_LAYERS",
            group="Compute",
            kind="gpu_layers",
            metavar="N|auto|all",
            minimum=0,
            shown_default="auto",
            help="Layers kept in GPU memory.",
        ),
    )
    split_mode: SplitMode = setting(
        "layer",
        Flag(
            names="-sm --split-mode",
            env="LLAMA_ARG_SPLIT_MODE",
            group="Compute",
            choices=get_args(SplitMode),
            help="How the model is divided over several GPUs.",
        ),
    )
    tensor_split: tuple[float, ...] = setting(
        (),
        Flag(
            names="-ts --tensor-split",
            env="LLAMA_ARG_TENSOR_SPLIT",
            group="Compute",
            kind="proportions",
            metavar="N0,N1,...",
            minimum=0,
            help="Share of the model for each GPU, for example 3,1.",
        ),
    )
    main_gpu: int = setting(
        0,
        Flag(
            names="-mg --main-gpu",
            env="LLAMA_ARG_MAIN_GPU",
            group="Compute",
            minimum=0,
            help="GPU that holds the model (split mode none) or intermediate results (row).",
        ),
    )
    kv_offload: bool = setting(
        True,
        Flag(
            names="-kvo --kv-offload",
            negated="-nkvo --no-kv-offload",
            env="LLAMA_ARG_KV_OFFLOAD",
            group="Compute",
            help="Keep the KV cache in GPU memory.",
        ),
    )
    op_offload: bool = setting(
        True,
        Flag(
            names="--op-offload",
            negated="--no-op-offload",
            group="Compute",
            help="Let the GPU compute with weights that are in main memory.",
        ),
    )
    load_mode: LoadMode = setting(
        "auto",
        Flag(
            names="-lm --load-mode",
            env="LLAMA_ARG_LOAD_MODE",
            group="Model",
            choices=get_args(LoadMode),
            help="How the file gets into memory.",
        ),
    )
    mmap: bool = setting(
        True,
        Flag(
            names="--mmap",
            negated="--no-mmap",
            env="LLAMA_ARG_MMAP",
            group="Model",
            help="Older spelling: --no-mmap means --load-mode none.",
        ),
    )
    mlock: bool = setting(
        False,
        Flag(
            names="--mlock",
            env="LLAMA_ARG_MLOCK",
            group="Model",
            help="Older spelling of --load-mode mmap+mlock: keep the model from being paged out.",
        ),
    )
    check_tensors: bool = setting(
        False,
        Flag(
            names="--check-tensors",
            group="Model",
            help="Look for invalid numbers in the weights while loading.",
        ),
    )
    rope_scaling: RopeScaling | Literal[""] = setting(
        "",
        Flag(
            names="--rope-scaling",
            env="LLAMA_ARG_ROPE_SCALING_TYPE",
            group="RoPE and YaRN",
            choices=get_args(RopeScaling),
            shown_default="from the model",
            help="Method by which RoPE frequencies are scaled.",
        ),
    )
    rope_scale: float = setting(
        0.0,
        Flag(
            names="--rope-scale",
            env="LLAMA_ARG_ROPE_SCALE",
            group="RoPE and YaRN",
            minimum=0,
            shown_default="from the model",
            help="Factor by which the context is stretched; the inverse of --rope-freq-scale.",
        ),
    )
    rope_freq_base: float = setting(
        0.0,
        Flag(
            names="--rope-freq-base",
            env="LLAMA_ARG_ROPE_FREQ_BASE",
            group="RoPE and YaRN",
            minimum=0,
            shown_default="from the model",
            help="Base frequency of RoPE.",
        ),
    )
    rope_freq_scale: float = setting(
        0.0,
        Flag(
            names="--rope-freq-scale",
            env="LLAMA_ARG_ROPE_FREQ_SCALE",
            group="RoPE and YaRN",
            minimum=0,
            shown_default="from the model",
            help="Factor of the RoPE frequencies; 0.5 doubles the context.",
        ),
    )
    yarn_orig_ctx: int = setting(
        0,
        Flag(
            names="--yarn-orig-ctx",
            env="LLAMA_ARG_YARN_ORIG_CTX",
            group="RoPE and YaRN",
            unit="tokens",
            minimum=0,
            maximum=2**24,  # llama.cpp makes its table of cells before it asks for the memory
            shown_default="0: the model's training context",
            help="Context that YaRN starts from.",
        ),
    )
    yarn_ext_factor: float = setting(
        -1.0,
        Flag(
            names="--yarn-ext-factor",
            env="LLAMA_ARG_YARN_EXT_FACTOR",
            group="RoPE and YaRN",
            shown_default="-1: from the model",
            help="Extrapolation mix of YaRN; 0 interpolates fully.",
        ),
    )
    yarn_attn_factor: float = setting(
        -1.0,
        Flag(
            names="--yarn-attn-factor",
            env="LLAMA_ARG_YARN_ATTN_FACTOR",
            group="RoPE and YaRN",
            shown_default="-1: from the model",
            help="Factor of the attention magnitude under YaRN.",
        ),
    )
    yarn_beta_slow: float = setting(
        -1.0,
        Flag(
            names="--yarn-beta-slow",
            env="LLAMA_ARG_YARN_BETA_SLOW",
            group="RoPE and YaRN",
            shown_default="-1: from the model",
            help="High correction dimension of YaRN.",
        ),
    )
    yarn_beta_fast: float = setting(
        -1.0,
        Flag(
            names="--yarn-beta-fast",
            env="LLAMA_ARG_YARN_BETA_FAST",
            group="RoPE and YaRN",
            shown_default="-1: from the model",
            help="Low correction dimension of YaRN.",
        ),
    )

    @property
    def chosen_load_mode(self) -> LoadMode:
        """`load_mode`, or what the older `mmap` and `mlock` amount to."""
        if self.load_mode != "auto" or (self.mmap and not self.mlock):
            return self.load_mode
        if self.mlock:
            return "mmap+mlock" if self.mmap else "mlock"
        return "none"

    @property
    def chosen_rope_freq_scale(self) -> float:
        """`rope_freq_scale`, or the inverse of `rope_scale`; 0: from the model."""
        if self.rope_freq_scale or not self.rope_scale:
            return self.rope_freq_scale
        return 1.0 / self.rope_scale

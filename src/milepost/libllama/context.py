"""A llama context: the sequences it holds, and how they are computed, cut, copied and aborted."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np

from milepost.arrays import Logits
from milepost.errors import ConfigurationError
from milepost.kinds import CacheType, FlashAttention, RopeScaling
from milepost.libllama.batch import Batch
from milepost.libllama.failures import check_decode
from milepost.libllama.media_batch import MediaBatch
from milepost.libllama.model import Model

CACHE_TYPES: dict[CacheType, int] = {  # enum ggml_type, those that llama.cpp takes for K and V
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}
# enum llama_flash_attn_type
FLASH_ATTN: dict[FlashAttention, int] = {"auto": -1, "off": 0, "on": 1}
ROPE_SCALING: dict[RopeScaling | Literal[""], int] = {  # enum llama_rope_scaling_type
    "": -1,
    "none": 0,
    "linear": 1,
    "yarn": 2,
}


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How to make a context; meanings are those of `llama_context_params`."""

    num_context_tokens: int  # cells shared by all sequences
    num_batch_tokens: int
    num_ubatch_tokens: int
    num_sequences: int
    num_threads: int
    num_threads_batch: int
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"
    swa_full: bool = False
    kv_offload: bool = True
    op_offload: bool = True
    # Empty: as the model says, here and below for 0 and -1.
    rope_scaling: RopeScaling | Literal[""] = ""
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0


class AbortFlag:
    """Two bytes that a running decode looks at between graph nodes; any thread may set it.

    llama.cpp calls its abort callback at every node, where a Python function would need the GIL
    each time. libc's `strlen` over "\\1\\0" or "\\0\\0" is true or false without any Python.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self.data_address = ctypes.addressof(self._buffer)
        self.function_address = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value or 0

    def set(self) -> None:
        """Ask the running decode to stop."""
        self._buffer[0] = b"\x01"

    def clear(self) -> None:
        """Let the next decode run."""
        self._buffer[0] = b"\x00"

    def is_set(self) -> bool:
        """Return whether a stop is asked for."""
        return self._buffer[0] != b"\x00"


class Context:
    """Owns a `llama_context` with one unified cache; close it before its model.

    Used by one thread only; `abort_flag` is the exception.
    """

    def __init__(self, model: Model, params: ContextParams) -> None:
        """Raises ConfigurationError when llama.cpp cannot make such a context."""
        self._library = model.library
        self._lib = model.library.lib
        self.model = model
        self.abort_flag = AbortFlag()
        self._library.warn_of_errors()
        self.pointer = self._lib.llama_init_from_model(model.pointer, self._native_params(params))
        if self.pointer == self._library.ffi.NULL:
            reason = self._library.take_errors() or "llama.cpp gave no reason"
            raise ConfigurationError(
                f"cannot make a context of {params.num_context_tokens} tokens for "
                f"{params.num_sequences} sequences: {reason}; try a smaller -c or other cache types"
            )
        self._memory = self._lib.llama_get_memory(self.pointer)
        if self._memory == self._library.ffi.NULL:
            self.close()
            raise ConfigurationError("the model keeps no context: it cannot continue a text")
        self._lib.llama_set_abort_callback(
            self.pointer,
            self._library.ffi.cast("void *", self.abort_flag.function_address),
            self._library.ffi.cast("void *", self.abort_flag.data_address),
        )
        self.num_context_tokens = int(self._lib.llama_n_ctx(self.pointer))
        self.num_batch_tokens = int(self._lib.llama_n_batch(self.pointer))
        self.num_ubatch_tokens = int(self._lib.llama_n_ubatch(self.pointer))
        self.num_sequences = int(self._lib.llama_n_seq_max(self.pointer))
        # The cells of a sliding window are then in a cache of their own, a window per sequence.
        self.has_small_window = model.num_window_tokens > 0 and not params.swa_full

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the context."""
        if self.pointer != self._library.ffi.NULL:
            self._lib.llama_free(self.pointer)
            self.pointer = self._library.ffi.NULL

    def decode(self, batch: Batch) -> None:
        """Compute a batch; the logits of its marked rows can then be read.

        Raises ContextFull (nothing changed), DecodeAborted (finished micro-batches stay: ask
        `pos_max`), NativeCallFailed (likewise).
        """
        batch.native.n_tokens = batch.num_tokens
        code = self._lib.llama_decode(self.pointer, batch.native[0])
        if code:
            check_decode(code, batch.num_tokens, self._library.take_errors())

    def decode_media(self, batch: MediaBatch, *, is_causal: bool) -> None:
        """Compute embeddings in place of tokens; raises as `decode`.

        Not causal, all of them see each other: they must fit into one micro-batch, which the caller
        sees to. llama.cpp ends the process if they do not.
        """
        assert is_causal or batch.num_tokens <= self.num_ubatch_tokens
        if not is_causal:
            self._lib.llama_set_causal_attn(self.pointer, False)
        try:
            code = self._lib.llama_decode(self.pointer, batch.native[0])
        finally:
            if not is_causal:
                self._lib.llama_set_causal_attn(self.pointer, True)
        if code:
            check_decode(code, batch.num_tokens, self._library.take_errors())

    def warm_up(self, batch: Batch) -> None:
        """Compute a token and forget it, so that weights are in memory before the first request."""
        self._lib.llama_set_warmup(self.pointer, True)
        batch.clear_rows()
        batch.add_token(max(self.model.vocab.bos_token, 0), 0, 0)
        self.decode(batch)
        self._lib.llama_synchronize(self.pointer)
        self._lib.llama_set_warmup(self.pointer, False)
        self.clear_sequences()

    def logits(self, row: int) -> Logits:
        """Return the logits of a row of the last batch, float32 of shape (num_vocab,).

        A view that the next decode overwrites.
        """
        pointer = self._lib.llama_get_logits_ith(self.pointer, row)
        assert pointer != self._library.ffi.NULL, f"row {row} has no logits"
        size = self.model.vocab.num_tokens * 4
        return np.frombuffer(self._library.ffi.buffer(pointer, size), np.float32)

    def clear_sequences(self) -> None:
        """Remove all sequences."""
        self._lib.llama_memory_clear(self._memory, True)

    def remove(self, seq_id: int, start: int = -1, end: int = -1) -> bool:
        """Remove the positions [start, end) of a sequence; -1 means from its begin, to its end.

        Returns False, and changes nothing, where the memory kind cannot cut there.
        """
        return bool(self._lib.llama_memory_seq_rm(self._memory, seq_id, start, end))

    def copy(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        """Make `target` share the positions [start, end) of `source`; -1 as in `remove`.

        Attention cells are shared as they are; a recurrent state is copied when it changes.
        """
        self._lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def pos_max(self, seq_id: int) -> int:
        """Return the last position that a sequence holds, -1 when it is empty."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq_id))

    def pos_min(self, seq_id: int) -> int:
        """Return the first position that every layer still holds, -1 when it is empty.

        For a sliding window this is the first position in the window's own cache.
        """
        return int(self._lib.llama_memory_seq_pos_min(self._memory, seq_id))

    def _native_params(self, params: ContextParams) -> Any:
        native = self._lib.llama_context_default_params()
        native.n_ctx = params.num_context_tokens
        native.n_batch = params.num_batch_tokens
        native.n_ubatch = params.num_ubatch_tokens
        native.n_seq_max = params.num_sequences
        # Only the last token of a prompt and decoded ones have logits: one per sequence.
        native.n_outputs_max = params.num_sequences
        native.n_threads = params.num_threads
        native.n_threads_batch = params.num_threads_batch
        native.type_k = CACHE_TYPES[params.cache_type_k]
        native.type_v = CACHE_TYPES[params.cache_type_v]
        native.flash_attn_type = FLASH_ATTN[params.flash_attn]
        native.swa_full = params.swa_full
        native.offload_kqv = params.kv_offload
        native.op_offload = params.op_offload
        native.kv_unified = True  # sequences share cells, and any one may use all of the context
        native.rope_scaling_type = ROPE_SCALING[params.rope_scaling]
        native.rope_freq_base = params.rope_freq_base
        native.rope_freq_scale = params.rope_freq_scale
        native.yarn_orig_ctx = params.yarn_orig_ctx
        native.yarn_ext_factor = params.yarn_ext_factor
        native.yarn_attn_factor = params.yarn_attn_factor
        native.yarn_beta_fast = params.yarn_beta_fast
        native.yarn_beta_slow = params.yarn_beta_slow
        return native

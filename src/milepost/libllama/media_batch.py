"""The input of a `llama_decode` that takes embeddings in place of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from milepost.arrays import EmbeddingRows, Positions
from milepost.libllama.loader import Library


class MediaBatch:
    """A part of an embedding block as the input of one `llama_decode`, of one sequence."""

    def __init__(self, library: Library, embeddings: EmbeddingRows, positions: Positions) -> None:
        """Takes float32 of shape (n, num_embd) and int32 of shape (sections, n)."""
        ffi = library.ffi
        self.num_tokens = num_tokens = len(embeddings)
        self._ffi = ffi
        self._embeddings = np.ascontiguousarray(embeddings, np.float32)
        self._positions = np.ascontiguousarray(positions, np.int32)
        self._num_seq_ids = np.ones(num_tokens, np.int32)
        self._outputs = np.zeros(num_tokens, np.int8)
        self.native: Any = ffi.new("llama_batch *")
        self.native.n_tokens = num_tokens

    def fill(self, seq_id: int, *, wants_last: bool) -> None:
        """Say whose tokens they are, and whether the logits of the last one are wanted."""
        ffi, native = self._ffi, self.native
        self._outputs[-1] = wants_last
        self._seq_id = np.array([seq_id], np.int32)
        self._pointers = np.full(self.num_tokens, self._seq_id.ctypes.data, np.uintp)
        native.embd = ffi.cast("float *", ffi.from_buffer(self._embeddings))
        native.pos = ffi.cast("llama_pos *", ffi.from_buffer(self._positions))
        native.n_seq_id = ffi.cast("int32_t *", ffi.from_buffer(self._num_seq_ids))
        native.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(self._pointers))
        native.logits = ffi.cast("int8_t *", ffi.from_buffer(self._outputs))

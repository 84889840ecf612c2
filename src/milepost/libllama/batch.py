"""The input of one `llama_decode` call, in arrays that are made once and filled in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from milepost.arrays import Tokens
from milepost.libllama.loader import Library


class Batch:
    """Up to `capacity` tokens of one or more sequences; each token belongs to one sequence.

    Rows are added in the order in which they are computed. Invariant: rows of one sequence have
    consecutive positions that continue what the context holds for it.
    """

    def __init__(self, library: Library, capacity: int) -> None:
        ffi = library.ffi
        self.capacity = capacity
        self.num_tokens = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._seq_ids = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        num_seq_ids = np.ones(capacity, np.int32)
        # llama_batch wants a pointer to the list of sequences of each token; every list has one
        # entry, so row i points at entry i of one array.
        first = self._seq_ids.ctypes.data
        pointers = np.arange(capacity, dtype=np.uintp) * self._seq_ids.itemsize + first
        self.native: Any = ffi.new("llama_batch *")
        self._keep_alive = [
            self._bind("token", "llama_token *", self._tokens, ffi),
            self._bind("pos", "llama_pos *", self._positions, ffi),
            self._bind("n_seq_id", "int32_t *", num_seq_ids, ffi),
            self._bind("seq_id", "llama_seq_id **", pointers, ffi),
            self._bind("logits", "int8_t *", self._outputs, ffi),
        ]

    def clear_rows(self) -> None:
        """Remove all rows."""
        self.num_tokens = 0

    def add_token(self, token: int, pos: int, seq_id: int) -> int:
        """Add one token whose logits are wanted; return its row."""
        row = self.num_tokens
        self._tokens[row] = token
        self._positions[row] = pos
        self._seq_ids[row] = seq_id
        self._outputs[row] = 1
        self.num_tokens = row + 1
        return row

    def add_tokens(
        self, tokens: Tokens | Sequence[int], first_pos: int, seq_id: int, *, wants_last: bool
    ) -> int:
        """Add a run of tokens of one sequence; return the row of the last.

        `wants_last` asks for the logits of the last token; those of the others are never computed.
        """
        start, end = self.num_tokens, self.num_tokens + len(tokens)
        assert len(tokens) > 0
        assert end <= self.capacity, "the batch is full"
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(first_pos, first_pos + len(tokens))
        self._seq_ids[start:end] = seq_id
        self._outputs[start:end] = 0
        self._outputs[end - 1] = wants_last
        self.num_tokens = end
        return end - 1

    def _bind(self, field: str, ctype: str, array: npt.NDArray[Any], ffi: Any) -> Any:
        memory = ffi.from_buffer(array)
        setattr(self.native, field, ffi.cast(ctype, memory))
        return memory

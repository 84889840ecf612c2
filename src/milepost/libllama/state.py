"""The state of one sequence as bytes: whole, as a range of attention cells, or its partial part.

llama.cpp writes a sequence as `header + attention + partial`, and its partial part alone as
`header + partial`. The partial part is what cannot be cut back: the recurrent state, or the cells
of the sliding window. This module takes them apart and puts them together again; whether a model
allows that is found out by `engine.memory_probe`.

    whole    = header + attention(all positions) + partial      `read_whole`, `write_whole`
    segment  = header + attention([start, end))                 `read_segment`, `write_segment`
    partial  = header + partial                                 `read_partial`, `write_partial`

A segment is written with the partial part of an empty sequence after it, so that loading many
segments does not move a recurrent state each time; the partial part of the wanted position is
written last.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from milepost.arrays import StateBytes
from milepost.errors import StateRefused
from milepost.libllama.context import Context

WHOLE = 0
MAX_HEADER_BYTES = 64  # arbitrary; it is 8 in this build (a magic number and the sequence id)
PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY

# "one_part": whole and partial are the same, so there is only attention or only recurrence;
# "two_parts": they can be taken apart; "unknown": they cannot.
StateLayout = Literal["one_part", "two_parts", "unknown"]


class StateIO:
    """Reads and writes sequence states of one context; on the thread of the context."""

    def __init__(self, context: Context, scratch: int) -> None:
        """`scratch` is a sequence id that is empty between calls."""
        self._context = context
        self._library = context.model.library
        self._lib = self._library.lib
        self._scratch = scratch
        self._num_header_bytes = 0
        self._empty_partial = np.zeros(0, np.uint8)  # without header

    def learn_layout(self, seq_id: int) -> StateLayout:
        """Find out from a sequence that holds tokens how its state is put together.

        Must be called before segments are read or written.
        """
        whole, partial = self._get(seq_id, WHOLE), self._get(seq_id, PARTIAL_ONLY)
        if len(whole) == len(partial):
            self._num_header_bytes = 0
            self._empty_partial = np.zeros(0, np.uint8)
            return "one_part" if np.array_equal(whole, partial) else "unknown"
        for num_bytes in range(MAX_HEADER_BYTES + 1):
            body = partial[num_bytes:]
            is_tail = np.array_equal(whole[len(whole) - len(body) :], body)
            if is_tail and np.array_equal(whole[:num_bytes], partial[:num_bytes]):
                self._num_header_bytes = num_bytes
                self._empty_partial = self._get(self._scratch, PARTIAL_ONLY)[num_bytes:]
                return "two_parts"
        return "unknown"

    def read_whole(self, seq_id: int) -> StateBytes:
        """Return the whole state of a sequence."""
        return self._get(seq_id, WHOLE)

    def write_whole(self, seq_id: int, data: StateBytes) -> None:
        """Replace a sequence by a whole state.

        Raises StateRefused, after which the sequence must be cleared.
        """
        self._set(seq_id, data, WHOLE)

    def read_partial(self, seq_id: int) -> StateBytes:
        """Return the recurrent state, or the window's cells, of a sequence."""
        return self._get(seq_id, PARTIAL_ONLY)

    def write_partial(self, seq_id: int, data: StateBytes) -> None:
        """Replace the recurrent state, or the window's cells; attention cells stay.

        Raises StateRefused, after which the sequence must be cleared.
        """
        self._set(seq_id, data, PARTIAL_ONLY)

    def read_segment(self, seq_id: int, start: int, end: int) -> StateBytes:
        """Return the attention cells of the positions [start, end) of a sequence."""
        context = self._context
        context.copy(seq_id, self._scratch, start, end)
        try:
            whole = self._get(self._scratch, WHOLE)
            if not len(self._empty_partial):
                return whole
            num_partial = self._size(self._scratch, PARTIAL_ONLY) - self._num_header_bytes
            return whole[: len(whole) - num_partial].copy()  # or the rest would stay in memory
        finally:
            context.remove(self._scratch)

    def write_segment(self, seq_id: int, data: StateBytes, start: int, end: int) -> None:
        """Add the positions [start, end) of a segment to a sequence.

        The segment may hold more positions after `end`. Raises StateRefused, after which the
        sequence must be cleared.
        """
        context = self._context
        try:
            self._set(self._scratch, np.concatenate([data, self._empty_partial]), WHOLE)
            context.copy(self._scratch, seq_id, start, end)
        finally:
            context.remove(self._scratch)

    def _size(self, seq_id: int, flags: int) -> int:
        return int(self._lib.llama_state_seq_get_size_ext(self._context.pointer, seq_id, flags))

    def _get(self, seq_id: int, flags: int) -> StateBytes:
        size = self._size(seq_id, flags)
        data = np.empty(size, np.uint8)
        written = self._lib.llama_state_seq_get_data_ext(
            self._context.pointer,
            self._library.ffi.from_buffer("uint8_t[]", data),
            size,
            seq_id,
            flags,
        )
        if written != size:
            raise StateRefused(f"the state of sequence {seq_id} has {written} of {size} bytes")
        return data

    def _set(self, seq_id: int, data: StateBytes, flags: int) -> None:
        self._library.warn_of_errors()
        read = self._lib.llama_state_seq_set_data_ext(
            self._context.pointer,
            self._library.ffi.from_buffer("uint8_t[]", data),
            len(data),
            seq_id,
            flags,
        )
        if read == 0 or read != len(data):
            reason = self._library.take_errors() or f"{read} of {len(data)} bytes were read"
            raise StateRefused(f"a state of sequence {seq_id} was refused: {reason}")

"""The logits behind the last prompts, so that one that is sent again need not be computed at all.

The state behind a whole prompt says how it goes on, but not with which token: that is in the logits
of its last token, which no state holds. A memory kind that cannot be cut back would have to start
from an earlier state only to compute that token again.

Those of the last prompt of each conversation are on disk as well, beside its state (written by
`persistence`, read by `restoring`).
"""

from __future__ import annotations

import numpy as np

MAX_BYTES = 16 << 20  # of logits and tokens; arbitrary: some 25 prompts of a large vocabulary


class PromptLogits:
    """Owns copies of logits by the tokens of their prompts; the least recently used goes first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rows: dict[bytes, np.ndarray] = {}  # the latest last
        self._num_bytes = 0

    def note(self, prompt: np.ndarray, logits: np.ndarray) -> None:
        """Keep a copy of the logits, float32 of shape (num_vocab,), behind an int32 prompt."""
        key = prompt.tobytes()
        self._forget(key)
        self._rows[key] = logits.copy()
        self._num_bytes += len(key) + logits.nbytes
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._rows)))

    def find(self, prompt: np.ndarray) -> np.ndarray | None:
        """Return the logits behind a prompt, None if they are not known; not to be changed."""
        key = prompt.tobytes()
        row = self._rows.get(key)
        if row is not None:
            self._rows[key] = self._rows.pop(key)
        return row

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._num_bytes = 0

    def _forget(self, key: bytes) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._num_bytes -= len(key) + row.nbytes

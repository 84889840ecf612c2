"""The logits after the last prompts, so that one that is sent again need not be computed at all.

The state after a whole prompt says how it goes on, but not with which token: that is in the logits
of its last token, which no state holds. A memory kind that cannot be cut back would have to start
from an earlier state only to compute that token again.

Those of the last prompt of each conversation are on disk as well, beside its state (written by
`persistence`, read by `restoring`).
"""

from __future__ import annotations

from milepost.arrays import Logits, Tokens
from milepost.lru import LruCache

MAX_BYTES = 16 << 20  # of logits and tokens; arbitrary: some 25 prompts of a large vocabulary


class PromptLogits:
    """Owns copies of logits by the tokens of their prompts; the least recently used goes first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._rows: LruCache[bytes, Logits] = LruCache(
            max_size=max_bytes, size_of=lambda prompt, row: len(prompt) + row.nbytes
        )

    def keep_logits(self, prompt: Tokens, logits: Logits) -> None:
        """Keep a copy of the logits, float32 of shape (num_vocab,), after an int32 prompt."""
        self._rows.put(prompt.tobytes(), logits.copy())

    def find_logits(self, prompt: Tokens) -> Logits | None:
        """Return the logits after a prompt, None if they are not known; not to be changed."""
        return self._rows.get(prompt.tobytes())

    def forget_all(self) -> None:
        """Forget everything."""
        self._rows.clear()

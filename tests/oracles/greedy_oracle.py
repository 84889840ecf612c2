"""Greedy continuations without any cache: slow and obviously right.

One context with nothing in it but the prompt, which is computed in the pieces that are named. In
the same pieces a model computes nearly the same numbers: whatever else an answer shows does not
come from how a prefill was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from milepost.libllama import Batch, Context


class GreedyOracle:
    """Computes every prompt from its first token; the context is its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = Batch(context.model.library, context.num_ubatch_tokens)

    def logprobs(
        self, prompt: Sequence[int], ends: Sequence[int], answer: Sequence[int]
    ) -> list[np.ndarray]:
        """Return for each token of an answer the logprobs that it was chosen from.

        `ends` are the positions where the micro-batches of the prompt end; the answer is taken as
        it is, so that all of its places can be compared even where two tokens are equally likely.
        """
        self._context.clear()
        start = row = 0
        for end in sorted({*ends, len(prompt)}):
            row = self._compute(prompt[start:end], start)
            start = end
        found = [log_softmax(self._context.logits(row))]
        for pos, token in enumerate(answer[:-1], len(prompt)):
            row = self._compute([token], pos)
            found.append(log_softmax(self._context.logits(row)))
        return found

    def _compute(self, tokens: Sequence[int], start: int) -> int:
        row = 0
        for first in range(0, len(tokens), self._batch.capacity):
            part = tokens[first : first + self._batch.capacity]
            self._batch.clear()
            row = self._batch.add_tokens(part, start + first, 0, wants_last=True)
            self._context.decode(self._batch)
        return row


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities, float64."""
    peak = float(logits.max())
    return logits.astype(np.float64) - peak - math.log(float(np.exp(logits - peak).sum()))

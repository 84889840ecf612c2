"""The oracle: how many tokens of each prompt an ideal cache would have had to prefill.

An ideal cache holds every prompt it was ever sent, as far as it was computed, and every token that
was decoded, whatever the memory kind of the model, the budgets and restarts. Slow and obviously
right: a prompt is compared with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from milepost.client.media_tokens import Tokens

# The last token of a prompt is always computed: its logits choose the first token of the answer.
MIN_PREFILLED = 1


class Oracle:
    """All token sequences that a server has computed so far."""

    def __init__(self, sequences: Iterable[Tokens] = ()) -> None:
        self._sequences: list[Tokens] = []
        for sequence in sequences:
            self.remember(sequence)

    def remember(self, sequence: Tokens) -> None:
        """Add a prompt with its decoded tokens, or the part of a prompt that was computed."""
        covered = {
            index
            for index, known in enumerate(self._sequences)
            if shared_length(known, sequence) == len(known)
        }
        kept = [known for index, known in enumerate(self._sequences) if index not in covered]
        self._sequences = [*kept, sequence]

    def count_known(self, prompt: Tokens) -> int:
        """Return the length of the longest prefix of a prompt that was computed before."""
        return max((shared_length(known, prompt) for known in self._sequences), default=0)


def count_needed(num_tokens: int, num_known: int, num_computed: int | None = None) -> int:
    """Return how many tokens of a prompt had to be prefilled, when a prefix was known.

    `num_computed` is where a cancelled prefill came to; None: to the end.
    """
    if num_computed is None or num_computed >= num_tokens:
        return max(num_tokens - num_known, min(MIN_PREFILLED, num_tokens))
    return max(num_computed - num_known, 0)


def shared_length(a: Tokens, b: Tokens) -> int:
    """Return the length of the longest common prefix."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    first = int(different.argmax()) if length else 0
    return first if length and different[first] else length


def count_prefilled_twice(num_prefilled: int, num_needed: int) -> int:
    """Return how many of the prefilled tokens had been computed before."""
    return max(0, num_prefilled - num_needed)

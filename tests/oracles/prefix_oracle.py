"""A prefix cache that is slow and obviously right: sets of prefixes, no tree, no limits.

A cell belongs to the whole prefix that ends with its token, because attention has mixed all of it
in; so does a state. Everything is kept under such prefixes.
"""

from __future__ import annotations

Prefix = tuple[int, ...]


class PrefixOracle:
    """What a cache without limits knows."""

    def __init__(self) -> None:
        self._histories: set[Prefix] = set()
        self._cells: set[Prefix] = set()
        self._states: set[Prefix] = set()

    def note(self, tokens: Prefix) -> None:
        self._histories.add(tokens)

    def add_segment(self, tokens: Prefix, start: int) -> None:
        self.note(tokens)
        if start <= self.saved_until(tokens):
            self._cells |= {tokens[:end] for end in range(start + 1, len(tokens) + 1)}

    def add_checkpoint(self, tokens: Prefix) -> None:
        self.note(tokens)
        self._states.add(tokens)

    def drop(self, tokens: Prefix) -> None:
        self._histories = {
            history
            for history in self._histories
            if history[: len(tokens)] != tokens and tokens[: len(history)] != history
        }
        known = {h[:end] for h in self._histories for end in range(1, len(h) + 1)}
        self._cells &= known
        self._states &= known

    def num_known(self, tokens: Prefix) -> int:
        return max((_shared(history, tokens) for history in self._histories), default=0)

    def saved_until(self, tokens: Prefix) -> int:
        for end in range(1, len(tokens) + 1):
            if tokens[:end] not in self._cells:
                return end - 1
        return len(tokens)

    def has_checkpoint(self, tokens: Prefix) -> bool:
        return tokens in self._states

    def checkpoints(self, prompt: Prefix) -> list[int]:
        """The positions of states below the last token, deepest first."""
        return [pos for pos in range(len(prompt) - 1, 0, -1) if prompt[:pos] in self._states]

    def divergences(self, prompt: Prefix) -> list[int]:
        """The positions where two histories, or one and the prompt, take different tokens."""
        histories = (*self._histories, prompt)
        found = []
        for pos in range(1, len(prompt) + 1):
            sharing = [h for h in histories if len(h) > pos and h[:pos] == prompt[:pos]]
            if len({history[pos] for history in sharing}) > 1:
                found.append(pos)
        return found


def _shared(left: Prefix, right: Prefix) -> int:
    num_shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        num_shared += 1
    return num_shared

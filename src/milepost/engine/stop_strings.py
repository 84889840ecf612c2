"""Find stop strings in a text that arrives in parts, at the very part that completes one.

Used by `decoding` for each sequence. It decides which text may be sent already: a stop string is
never sent, not even its begin, and text that cannot become one is never kept back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches the text of one sequence; `held` is the end that may turn into a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [text for text in stop if text]
        self.held = ""
        self.found = ""  # the stop string that ended the text

    def feed(self, text: str) -> str:
        """Take new text and return what may be sent; afterwards look at `found`.

        Where several stop strings are complete, the one that begins first counts, and of those
        the longest.
        """
        if not self._stop:
            return text
        self.held += text
        matches = [
            (at, -len(stop), stop) for stop in self._stop if (at := self.held.find(stop)) >= 0
        ]
        if matches:
            start, _, self.found = min(matches)
            sent, self.held = self.held[:start], ""
            return sent
        keep = self._num_held()
        cut = len(self.held) - keep
        sent, self.held = self.held[:cut], self.held[cut:]
        return sent

    def flush(self) -> str:
        """Return the text that was kept back, at an end without a stop string."""
        rest, self.held = self.held, ""
        return rest

    def _num_held(self) -> int:
        """Length of the longest end of `held` that begins a stop string."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(self.held)), 0, -1):
            tail = self.held[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0

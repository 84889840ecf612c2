"""Ends a reply's reasoning when it has used its tokens.

Watches the sampled tokens of one sequence for the markers around reasoning, and says which tokens
are taken instead of sampled ones once the budget is used: those of a message and of the end marker.
They are part of the reply like any other. Used by `decoding`.
"""

from __future__ import annotations

from collections import deque

from milepost.protocol.messages import ReasoningLimit


class ReasoningBudget:
    """The budget of one sequence."""

    def __init__(self, limit: ReasoningLimit) -> None:
        self._start = limit.start.encode()
        self._end = limit.end.encode()
        self._ending = limit.ending
        self._num_left = limit.max_tokens
        self._is_inside = limit.is_open
        self._tail = b""  # the end of the text, which may be the beginning of a marker
        self._forced: deque[int] = deque()

    def note(self, token_bytes: bytes) -> None:
        """Take the bytes of the token that was added to the reply."""
        text = self._tail + token_bytes
        was_inside = self._is_inside
        while (end := self._find_marker(text)) >= 0:
            self._is_inside = not self._is_inside
            text = text[end:]
        if was_inside and self._is_inside:
            self._num_left -= 1
        self._tail = text[-max(len(self._start), len(self._end)) :]

    def next_forced(self) -> int | None:
        """Return the token that must come next, None when it is to be sampled.

        Only to be called where the text is at the end of a character.
        """
        if not self._forced and self._is_inside and self._num_left <= 0:
            self._forced.extend(self._ending)
        return self._forced[0] if self._forced else None

    def note_forced(self) -> None:
        """Take note that the forced token was added to the reply."""
        self._forced.popleft()
        if not self._forced:
            self._is_inside = False  # whatever the bytes of the end marker look like

    def give_up(self) -> None:
        """Let the reasoning go on: a constraint does not allow its end."""
        self._forced.clear()
        self._is_inside = False
        self._start = b""

    def _find_marker(self, text: bytes) -> int:
        """Return the end of the marker that changes the state, -1 when it is not there."""
        marker = self._end if self._is_inside else self._start
        at = text.find(marker) if marker else -1
        return at + len(marker) if at >= 0 else -1

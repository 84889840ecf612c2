"""Bytes of sampled tokens to text, one character never in two parts."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Decodes the bytes of one sequence; an incomplete character waits for its other bytes.

    Bytes that can never become a character turn into U+FFFD. A character that is still incomplete
    at the end of the generation is dropped, as llama-server does.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def is_inside_character(self) -> bool:
        """Whether bytes wait for the others of their character."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token_bytes: bytes) -> str:
        """Return the text that these bytes complete."""
        return self._decoder.decode(token_bytes)

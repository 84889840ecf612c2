"""What this package needs to know of a model's vocabulary.

The one real implementation is `milepost.libllama`'s; it is passed in, because text is turned into
tokens here and only libllama may touch the native library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Vocab(Protocol):
    """A model's vocabulary: text to tokens and back."""

    @property
    def num_tokens(self) -> int:
        """Ids are 0 ..< num_tokens."""

    @property
    def bos_text(self) -> str:
        """How the beginning-of-sequence token is spelled; empty where the model has none."""

    @property
    def eos_text(self) -> str:
        """How the end-of-sequence token is spelled; empty where the model has none."""

    @property
    def adds_bos(self) -> bool:
        """Whether `tokenize` with add_special puts the BOS token in front."""

    @property
    def eog_tokens(self) -> frozenset[int]:
        """The ids of all tokens that end a generation."""

    @property
    def bos_token(self) -> int:
        """The id of the BOS token; -1 where the model has none."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of `text`; spelled control tokens become tokens if parse_special."""

    def tokenize_continuation(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text that goes on from another one: no space is put before it."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, control tokens included."""

    def is_control(self, token: int) -> bool:
        """Say whether the token steers the model instead of standing for text."""

    def control_texts(self) -> Mapping[str, int]:
        """Return how each control token is spelled, with its id."""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        """Return the text of tokens, control tokens too if `special`; bad UTF-8 is replaced."""

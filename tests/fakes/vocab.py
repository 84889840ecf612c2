"""A vocabulary without a model: one token per byte, and ChatML's special tokens behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NUM_BYTES = 256
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # parsed in any text

END_OF_TEXT, IM_START, IM_END, THINK, END_THINK, TOOL_CALL, END_TOOL_CALL = range(256, 263)


class FakeVocab:
    """Implements `milepost.chat.vocab.Vocab`; `<|endoftext|>` is BOS and EOS."""

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.bos_token = END_OF_TEXT
        self.bos_text = self.eos_text = "<|endoftext|>"
        self._specials = {text: NUM_BYTES + i for i, text in enumerate((*CONTROLS, *USER_DEFINED))}
        self.eog_tokens = frozenset({END_OF_TEXT, IM_END})
        self.num_tokens = NUM_BYTES + len(self._specials)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return byte tokens, and special tokens where they are spelled."""
        parsed = (*CONTROLS, *USER_DEFINED) if parse_special else USER_DEFINED
        tokens = [self.bos_token] if add_special and self.adds_bos else []
        for part in re.split(f"({'|'.join(map(re.escape, parsed))})", text):
            tokens += [self._specials[part]] if part in parsed else part.encode()
        return tokens

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token."""
        if token < NUM_BYTES:
            return bytes([token])
        return (*CONTROLS, *USER_DEFINED)[token - NUM_BYTES].encode()

    def is_control(self, token: int) -> bool:
        """Say whether the token is one of ChatML's frame."""
        return NUM_BYTES <= token < NUM_BYTES + len(CONTROLS)

    def control_texts(self) -> Mapping[str, int]:
        """Return the control tokens by their text."""
        return {text: self._specials[text] for text in CONTROLS}

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        """Return the text of tokens."""
        shown = (token for token in tokens if special or not self.is_control(token))
        return b"".join(map(self.piece, shown)).decode(errors="replace")

"""Vocabularies without a model: one token per byte, and special tokens after them."""

from __future__ import annotations

import random
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

    def tokenize_continuation(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the same: no text gets a space here."""
        return self.tokenize(text, add_special=False, parse_special=parse_special)

    def token_bytes(self, token: int) -> bytes:
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
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")


class MergingVocab:
    """Tokens of up to three characters, so that the same text has many tokens.

    `controls` are its control tokens; all but the first end a generation or begin a turn. With
    `puts_space` a space comes before each text that does not begin with a control token.
    """

    MERGED = ("th", "he", "the", "in", " a", ": ", ", ", '"}', '":', "\n\n", "un", "el", "ll")

    def __init__(
        self,
        controls: Sequence[str],
        ends: Sequence[str],
        *,
        adds_bos: bool = False,
        puts_space: bool = False,
    ) -> None:
        self.adds_bos = adds_bos
        self.bos_text = self.eos_text = controls[0] if controls else ""
        self.bos_token = NUM_BYTES if controls else -1
        self._puts_space = puts_space
        self._controls = {text: NUM_BYTES + i for i, text in enumerate(controls)}
        first_merged = NUM_BYTES + len(controls)
        self._merged = {text.encode(): first_merged + i for i, text in enumerate(self.MERGED)}
        self._pieces = [*(bytes([i]) for i in range(NUM_BYTES)), *map(str.encode, controls)]
        self._pieces += list(self._merged)
        self.num_tokens = len(self._pieces)
        self.eog_tokens = frozenset(self._controls[text] for text in ends)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens, the longest merges first."""
        bos = [self.bos_token] if add_special and self.adds_bos else []
        return bos + self._tokenize(text, parse_special, " " if self._puts_space else "")

    def tokenize_continuation(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens without a space before the text."""
        return self._tokenize(text, parse_special, "")

    def _tokenize(self, text: str, parse_special: bool, before: str) -> list[int]:
        tokens: list[int] = []
        parts = [text]
        if parse_special and self._controls:
            longest_first = sorted(self._controls, key=len, reverse=True)
            parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        for part in filter(None, parts):
            if parse_special and part in self._controls:
                tokens.append(self._controls[part])
            else:
                tokens += self.split(before + part)
        return tokens

    def split(self, text: str, rng: random.Random | None = None) -> list[int]:
        """Return the tokens of plain text; with `rng` some of the others that it could have."""
        data, tokens = text.encode(), []
        while data:
            sizes = [size for size in (3, 2) if data[:size] in self._merged]
            size = (rng.choice([*sizes, 1]) if rng else max(sizes, default=1)) if sizes else 1
            tokens.append(self._merged[data[:size]] if size > 1 else data[0])
            data = data[size:]
        return tokens

    def sample(self, text: str, rng: random.Random) -> list[int]:
        """Return tokens as a model might sample them: control tokens, and text in any tokens."""
        pattern = "|".join(map(re.escape, sorted(self._controls, key=len, reverse=True)))
        parts = re.split(f"({pattern})", text) if pattern else [text]
        return [
            token
            for part in parts
            for token in (
                [self._controls[part]] if part in self._controls else self.split(part, rng)
            )
        ]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token."""
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        """Say whether the token is a control token."""
        return token in self._controls.values()

    def text_of_control(self, token: int) -> str:
        """Return how a control token is spelled."""
        return self._pieces[token].decode()

    def control_texts(self) -> Mapping[str, int]:
        """Return the control tokens by their text."""
        return self._controls

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        """Return the text of tokens."""
        shown = (token for token in tokens if special or not self.is_control(token))
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

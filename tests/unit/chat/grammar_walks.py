"""Random replies under a grammar: what a model with random weights might write, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from milepost.chat.formats.grammar_writer import SpecialTokens

NUM_BYTES = 256
HINT_SHARE = 0.25  # of the steps at which a hint is tried
WANTED = {*b'abcdefgh 019_-{}[]()":,.<>=/|\n', *"é".encode()}


@dataclass(slots=True)
class ByteTable:
    """A vocabulary of single bytes and some control tokens, as llguidance reads one."""

    controls: tuple[str, ...] = ()
    is_tokenizer_wrapper: bool = True
    bos_token_id: int | None = None
    tokens: list[bytes] = field(init=False)
    eos_token_id: int = field(init=False)
    special_token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        spelled = [b"\xff" + text.encode() for text in (*self.controls, "<end>")]
        self.tokens = [bytes([byte]) for byte in range(NUM_BYTES)] + spelled
        self.special_token_ids = [*range(NUM_BYTES, len(self.tokens))]
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    @property
    def specials(self) -> SpecialTokens:
        """The control tokens of a request; none of them ends a generation."""
        return SpecialTokens.make({text: NUM_BYTES + i for i, text in enumerate(self.controls)})

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with control tokens where they are spelled."""
        tokens: list[int] = []
        while text:
            for text_of, token in self.specials.by_text.items():
                if text.startswith(text_of):
                    tokens.append(token)
                    text = text[len(text_of) :]
                    break
            else:
                tokens += text[0].encode()
                text = text[1:]
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens."""
        return b"".join(self.tokens[token].lstrip(b"\xff") for token in tokens).decode()


class Walker:
    """Follows one grammar."""

    def __init__(
        self, grammar: str, controls: tuple[str, ...] = (), hints: Sequence[str] = ()
    ) -> None:
        """Follow a grammar; `hints` are texts that a random reply should find its way to."""
        self.table = ByteTable(controls)
        tokenizer = LLTokenizer(self.table, n_vocab=len(self.table.tokens))  # type: ignore[arg-type]
        self._hints = [self.table.encode(hint) for hint in hints]
        self._first = LLMatcher(tokenizer, grammar)
        assert not self._first.is_error(), f"{self._first.get_error()}\n{grammar}"

    def accepts(self, text: str) -> bool:
        """Return whether a whole text follows the grammar."""
        matcher = self._first.deep_copy()
        tokens = self.table.encode(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def taken_of(self, text: str) -> str:
        """Return the part of a text that is taken; it is the text when all of it is."""
        matcher = self._first.deep_copy()
        tokens = self.table.encode(text)
        return self.table.decode(tokens[: matcher.try_consume_tokens(tokens)])

    def walk(self, seed: int, *, num_tokens: int = 1200) -> str | None:
        """Return a random reply that ended, None for one that did not."""
        matcher, rng = self._first.deep_copy(), random.Random(seed)
        tokens: list[int] = []
        mask = np.zeros((len(self.table.tokens) + 31) // 32, np.uint32)
        for _ in range(num_tokens):
            if matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.3):
                return self.table.decode(tokens)
            if self._hints and rng.random() < HINT_SHARE:
                hint = rng.choice(self._hints)
                tokens += hint[: matcher.try_consume_tokens(hint)]
                continue
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: self.table.eos_token_id]).tolist()
            tokens.append(choose(allowed, rng))
            assert matcher.consume_token(tokens[-1])
        return None


def choose(allowed: list[int], rng: random.Random) -> int:
    """Return one of the tokens: mostly one that is in use, often one that ends something."""
    usual = [token for token in allowed if token in WANTED or token >= NUM_BYTES]
    closing = [token for token in usual if token >= NUM_BYTES or token in b'"<}])']
    if closing and rng.random() < 0.35:
        return rng.choice(closing)
    return rng.choice(usual or allowed)


def is_valid(value: object, schema: Mapping[str, object]) -> bool:
    """Return whether a value follows a schema of the few keywords that these tests use."""
    if "anyOf" in schema:
        return any(is_valid(value, one) for one in schema["anyOf"])  # type: ignore[attr-defined]
    if "enum" in schema:
        return value in schema["enum"]  # type: ignore[operator]
    match schema.get("type"):
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            items = schema["items"]
            return isinstance(value, list) and all(is_valid(one, items) for one in value)  # type: ignore[arg-type]
        case "object":
            return isinstance(value, dict) and _has_valid_members(value, schema)
    return True


def _has_valid_members(value: Mapping[str, object], schema: Mapping[str, object]) -> bool:
    named: Mapping[str, Mapping[str, object]] = schema.get("properties", {})  # type: ignore[assignment]
    required: list[str] = schema.get("required", [])  # type: ignore[assignment]
    return (
        all(key in value for key in required)
        and (schema.get("additionalProperties") is not False or value.keys() <= named.keys())
        and all(is_valid(item, named[key]) for key, item in value.items() if key in named)
    )

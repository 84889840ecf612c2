"""The vocabulary of a model: text to tokens, tokens to bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from milepost.errors import InvalidRequest, NativeCallFailed

if TYPE_CHECKING:
    from milepost.libllama.loader import Library

NO_TOKEN = -1  # LLAMA_TOKEN_NULL
ATTR_CONTROL = 1 << 3  # enum llama_token_attr
TOKEN_BUFFER_BYTES = 256  # arbitrary; longer tokens are asked for again
LEAD = "\x02"  # joins with nothing: no vocabulary has a token with it and other text


class Vocab:
    """Borrows the vocabulary of a `Model`, which must outlive it."""

    def __init__(self, library: Library, pointer: Any) -> None:
        self._library = library
        self._lib = library.lib
        self._ffi = library.ffi
        self.pointer = pointer
        self.num_tokens: int = self._lib.llama_vocab_n_tokens(pointer)
        self.bos_token: int = self._lib.llama_vocab_bos(pointer)  # or NO_TOKEN
        self.eos_token: int = self._lib.llama_vocab_eos(pointer)  # or NO_TOKEN
        self.adds_bos: bool = bool(self._lib.llama_vocab_get_add_bos(pointer))
        self._token_bytes: dict[tuple[int, bool], bytes] = {}

    @property
    def bos_text(self) -> str:
        """Text of the begin-of-sequence token, empty where there is none."""
        return self._text(self.bos_token)

    @property
    def eos_text(self) -> str:
        """Text of the end-of-sequence token, empty where there is none."""
        return self._text(self.eos_token)

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """All tokens that end a generation."""
        is_eog = self._lib.llama_vocab_is_eog
        return frozenset(i for i in range(self.num_tokens) if is_eog(self.pointer, i))

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """All control tokens, those without a text of their own included."""
        return frozenset(filter(self.is_control, range(self.num_tokens)))

    @cached_property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Tokens that the model file says must never be sampled."""
        count = self._ffi.new("int32_t *")
        tokens = self._lib.llama_vocab_get_suppress_tokens(self.pointer, count)
        return tuple(tokens[i] for i in range(count[0]))

    @cached_property
    def _controls(self) -> dict[str, int]:
        get_attr = self._lib.llama_vocab_get_attr
        tokens = (i for i in range(self.num_tokens) if get_attr(self.pointer, i) & ATTR_CONTROL)
        return {self._text(token): token for token in tokens}

    def control_texts(self) -> Mapping[str, int]:
        """Return text -> token of every control token, such as `<|im_start|>`."""
        return self._controls

    def is_control(self, token: int) -> bool:
        """Return whether a token is a control token."""
        return bool(self._lib.llama_vocab_get_attr(self.pointer, token) & ATTR_CONTROL)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text.

        `add_special` lets the model's own rules add BOS and EOS; `parse_special` turns text that
        spells a control token into that token. Lone surrogates are replaced by U+FFFD.
        """
        data = encode_text(text)
        # One token a byte is the most that any tokenizer makes, plus BOS, EOS and a space.
        capacity = len(data) + 4
        buffer = self._ffi.new("llama_token[]", capacity)
        count = self._lib.llama_tokenize(
            self.pointer, data, len(data), buffer, capacity, add_special, parse_special
        )
        if count < 0:
            capacity = -count
            buffer = self._ffi.new("llama_token[]", capacity)
            count = self._lib.llama_tokenize(
                self.pointer, data, len(data), buffer, capacity, add_special, parse_special
            )
        if count < 0:
            raise NativeCallFailed(f"llama_tokenize of {len(data)} bytes failed with {count}")
        return list(self._ffi.unpack(buffer, count)) if count else []

    def tokenize_continuation(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the tokens of a text that goes on from another one.

        As `tokenize`, but without the space that some SentencePiece vocabularies put before all
        that begins (`add_space_prefix`).
        """
        if not self._adds_space:
            return self.tokenize(text, add_special=False, parse_special=parse_special)
        lead = self.tokenize(LEAD, add_special=False, parse_special=False)
        return self.tokenize(LEAD + text, add_special=False, parse_special=parse_special)[
            len(lead) :
        ]

    @cached_property
    def _adds_space(self) -> bool:
        tokens = self.tokenize("a", add_special=False, parse_special=False)
        return self.detokenize(tokens, special=True).startswith(" ")

    def token_bytes(self, token: int, *, special: bool = True) -> bytes:
        """Return the bytes of one token, which may be a part of a UTF-8 character.

        With `special` control tokens are spelled out, without it they are empty.
        """
        if not 0 <= token < self.num_tokens:
            return b""
        key = (token, special)
        found = self._token_bytes.get(key)
        if found is None:
            found = self._token_bytes[key] = self._read_token_bytes(token, special)
        return found

    def read_all_token_bytes(self) -> Iterator[bytes]:
        """Yield the bytes of every token, in the order of the ids; control tokens spelled out.

        Nothing of it is kept, so a thread may read while another one uses `token_bytes`.
        """
        buffer = self._ffi.new("char[]", TOKEN_BUFFER_BYTES)
        read, pointer = self._lib.llama_token_to_piece, self.pointer
        for token in range(self.num_tokens):
            length = read(pointer, token, buffer, TOKEN_BUFFER_BYTES, 0, True)
            if length < 0:
                yield self._read_token_bytes(token, True)
            else:
                yield bytes(self._ffi.buffer(buffer, length)[:])

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        """Return the text of tokens; incomplete characters become U+FFFD."""
        return b"".join(self.token_bytes(token, special=special) for token in tokens).decode(
            errors="replace"
        )

    def check_tokens(self, tokens: Iterable[int]) -> None:
        """Raise InvalidRequest for a token that is not in the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.num_tokens:
                raise InvalidRequest(
                    f"token {token} is not in the vocabulary, which has 0 to {self.num_tokens - 1}"
                )

    def _read_token_bytes(self, token: int, special: bool) -> bytes:
        # A buffer per call: the call releases the GIL, and two threads may read tokens.
        buffer = self._ffi.new("char[]", TOKEN_BUFFER_BYTES)
        read, size = self._lib.llama_token_to_piece, TOKEN_BUFFER_BYTES
        length = read(self.pointer, token, buffer, size, 0, special)
        if length < 0:
            buffer = self._ffi.new("char[]", -length)
            length = read(self.pointer, token, buffer, -length, 0, special)
        return bytes(self._ffi.buffer(buffer, length)[:])

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        return self._library.text(self._lib.llama_vocab_get_text(self.pointer, token))


def encode_text(text: str) -> bytes:
    """Return a text as UTF-8, with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    try:
        return text.encode()
    except UnicodeEncodeError:  # `errors="replace"` would make question marks of them
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()

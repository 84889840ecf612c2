"""What a sequence may sample next: a grammar in llama.cpp's format, or one for llguidance.

Used by `sampling`: it samples freely first and asks a constraint about that one token, and for all
allowed tokens only when that one is refused, which costs a hundred times as much.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from milepost.arrays import Tokens
from milepost.errors import InvalidRequest, NotSupported
from milepost.libllama import Candidates, Grammar, Library, Model, Vocab, encode_text
from milepost.lru import LruCache
from milepost.protocol.messages import Generate

# Compiled grammars that are kept: an agent sends the same tools with every step, and compiling
# those takes tens of milliseconds, a copy microseconds. Arbitrary.
MAX_COMPILED = 32

logger = logging.getLogger(__name__)


class Constraint(Protocol):
    """The state of a grammar while a text grows; the end of the text counts as a token."""

    def try_accept(self, token: int) -> bool:
        """Advance by a token if the grammar allows it next, and return whether it does."""

    def allowed(self) -> Tokens:
        """Return all tokens that it allows next, int32 in rising order."""

    @property
    def failure(self) -> str:
        """Why nothing is allowed any more, if that is no decision of the grammar; else empty."""

    def close(self) -> None:
        """Free what it holds; it cannot be used any more."""


class GbnfConstraint:
    """A grammar as llama.cpp reads it."""

    failure = ""

    def __init__(self, library: Library, vocab: Vocab, gbnf: str) -> None:
        """Raises InvalidRequest when the grammar cannot be parsed or has no rule `root`."""
        self._library = library
        self._num_tokens = vocab.num_tokens
        self._grammar = Grammar(library, vocab, gbnf)
        self._one = Candidates(library, 1)
        self._all: Candidates | None = None

    def try_accept(self, token: int) -> bool:
        """Advance by a token if it is allowed."""
        self._one.fill_one(token)
        self._grammar.restrict(self._one)
        if not self._one.has_any:
            return False
        self._grammar.accept(token)
        return True

    def allowed(self) -> Tokens:
        """Return all tokens that it allows next."""
        if self._all is None:
            self._all = Candidates(self._library, self._num_tokens)
        self._all.fill(np.zeros(self._num_tokens, np.float32))
        self._grammar.restrict(self._all)
        return self._all.possible

    def close(self) -> None:
        """Free the grammar."""
        self._grammar.close()


class MatcherConstraint:
    """A grammar as llguidance reads it.

    It knows nothing of the tokens that end a generation: they are allowed where the text may end.
    """

    def __init__(self, matcher: LLMatcher, num_tokens: int, eog_tokens: frozenset[int]) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens
        self._eog_tokens = eog_tokens
        self._mask = np.zeros(num_mask_words(num_tokens), np.uint32)

    def try_accept(self, token: int) -> bool:
        """Advance by a token if it is allowed."""
        if token in self._eog_tokens:
            return self._may_end()
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def allowed(self) -> Tokens:
        """Return all tokens that it allows next."""
        self._mask[:] = 0
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            return np.zeros(0, np.int32)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._num_tokens]
        bits[list(self._eog_tokens)] = self._may_end()
        return np.flatnonzero(bits).astype(np.int32)

    @property
    def failure(self) -> str:
        """The limit that the grammar has run into, if it has."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def close(self) -> None:
        """Do nothing: the matcher is freed with this object."""

    def _may_end(self) -> bool:
        return bool(self._matcher.is_accepting()) and not self._matcher.is_error()


class ConstraintMaker:
    """Makes the constraints of sequences; owns llguidance's table of the vocabulary.

    Making the table takes up to a second with a large vocabulary, so a thread does it while the
    model is loaded (`prepare`); without that the first constraint does.
    """

    def __init__(self, model: Model) -> None:
        self._model = model  # must outlive the thread
        self._table: Future[LLTokenizer] | None = None
        self._compiled: LruCache[str, LLMatcher] = LruCache(MAX_COMPILED)

    def prepare(self) -> None:
        """Begin to make the table, on a thread."""
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="token-table")
        self._table = executor.submit(make_table, self._model.vocab)
        executor.shutdown(wait=False)

    def close(self) -> None:
        """Wait until nothing uses the model any more."""
        if self._table is not None:
            self._table.exception()

    def make(self, message: Generate) -> Constraint | None:
        """Return the constraint of a sequence, None when there is none.

        Raises InvalidRequest when the grammar cannot be parsed, NotSupported when the vocabulary
        is one that llguidance cannot use.
        """
        vocab = self._model.vocab
        if message.prompt.constraint:
            matcher = self._compile(message.prompt.constraint).deep_copy()
            return MatcherConstraint(matcher, vocab.num_tokens, vocab.eog_tokens)
        if message.params.sampling.grammar:
            return GbnfConstraint(self._model.library, vocab, message.params.sampling.grammar)
        return None

    def _compile(self, text: str) -> LLMatcher:
        matcher = self._compiled.get(text)
        if matcher is None:
            matcher = LLMatcher(self._find_table(), text)
            if matcher.is_error():
                raise InvalidRequest(f"the grammar cannot be compiled: {matcher.get_error()}")
            self._compiled.put(text, matcher)
        return matcher

    def _find_table(self) -> LLTokenizer:
        if self._table is None:
            self.prepare()
        assert self._table is not None
        if error := self._table.exception():  # not raised itself: it would grow each time
            raise NotSupported(
                f"the vocabulary of this model cannot be used for grammars ({error}); leave out "
                "response_format, required tools and strict ones"
            )
        return self._table.result()


class TokenTable:
    """A vocabulary in the shape in which llguidance reads one.

    Control tokens get a byte in front that no text has, so that a grammar takes them by their ids
    only. Behind the vocabulary stands one more token, which llguidance holds for its end.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        special = vocab.eog_tokens | vocab.control_tokens
        self.tokens: Sequence[bytes] = [
            b"\xff" + token_bytes if token in special else token_bytes
            for token, token_bytes in enumerate(vocab.read_all_token_bytes())
        ] + [b"\xff<end>"]
        self.eos_token_id = vocab.num_tokens
        self.special_token_ids = [*sorted(special), self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens that the model was trained to write a text with.

        They spell the text to the byte: where a grammar leaves no choice, llguidance makes a mask
        of the first one, and another byte would be the end of the answer.
        """
        data = encode_text(text) if isinstance(text, str) else text
        tokens = self._vocab.tokenize_continuation(
            data.decode(errors="replace"), parse_special=False
        )
        if b"".join(self.tokens[token] for token in tokens) == data:
            return tokens
        return self._spell(data)

    def _spell(self, data: bytes) -> list[int]:
        """Return tokens of bytes that the tokenizer reads as others: it makes a space of "▁"."""
        tokens, done = [], 0
        while done < len(data):
            ends = range(min(len(data), done + self._longest), done, -1)
            end = next((end for end in ends if data[done:end] in self._by_bytes), 0)
            if not end:
                break  # there is no token for this byte; it ends the answer when it must come
            tokens.append(self._by_bytes[data[done:end]])
            done = end
        return tokens

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {token_bytes: token for token, token_bytes in enumerate(self.tokens) if token_bytes}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes))


def make_table(vocab: Vocab) -> LLTokenizer:
    """Return llguidance's table of a vocabulary."""
    table: Any = TokenTable(vocab)
    return LLTokenizer(table, n_vocab=vocab.num_tokens + 1)


def num_mask_words(num_tokens: int) -> int:
    """Return how many words of 32 bits hold a bit for each token and the end."""
    return (num_tokens + 1 + 31) // 32

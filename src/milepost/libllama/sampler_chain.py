"""llama.cpp's samplers: a chain that picks a token, and a grammar that forbids some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from milepost.arrays import Logits, Tokens
from milepost.errors import InvalidRequest
from milepost.libllama.context import Context
from milepost.libllama.loader import Library
from milepost.libllama.vocab import NO_TOKEN, Vocab, encode_text

MIROSTAT_M = 100  # candidates that mirostat 1 estimates its exponent from, as in its paper
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """All tokens of a vocabulary with their logits, as samplers take and change them.

    One object is filled anew for each use; after a sampler ran, order and size are its own.
    """

    def __init__(self, library: Library, num_vocab: int) -> None:
        ffi = library.ffi
        self._ids = np.arange(num_vocab, dtype=np.int32)
        self._data = np.zeros(num_vocab, TOKEN_DATA)
        self._memory = ffi.from_buffer(self._data)
        self.native: Any = ffi.new("llama_token_data_array *")
        self._pointer = ffi.cast("llama_token_data *", self._memory)

    def fill(self, logits: Logits) -> None:
        """Take the logits of all tokens, float32 of shape (num_vocab,)."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._reset(len(self._data))

    def fill_some(self, logits: Logits, tokens: Tokens) -> None:
        """Take some tokens only, int32 of shape (n,), with their values among all logits."""
        self._data["id"][: len(tokens)] = tokens
        self._data["logit"][: len(tokens)] = logits[tokens]
        self._reset(len(tokens))

    def fill_one(self, token: int) -> None:
        """Take one token as the only candidate."""
        self._data[0] = (token, 1.0, 0.0)
        self._reset(1)

    @property
    def has_any(self) -> bool:
        """Whether the first candidate, or any other, is still allowed."""
        logits = self._data["logit"][: self.native.size]
        return bool(np.any(logits > -np.inf))

    @property
    def possible(self) -> Tokens:
        """The tokens that are still allowed, int32; only before a sampler of a chain ran."""
        candidates = self._data[: self.native.size]
        found: Tokens = candidates["id"][candidates["logit"] > -np.inf]
        return found

    @property
    def most_likely(self) -> int:
        """The token with the largest logit; only before a sampler of a chain ran."""
        candidates = self._data[: self.native.size]
        return int(candidates["id"][np.argmax(candidates["logit"])])

    @property
    def selected(self) -> int:
        """The token that the last sampler picked, or NO_TOKEN."""
        index = int(self.native.selected)
        return int(self.native.data[index].id) if index >= 0 else NO_TOKEN

    def _reset(self, size: int) -> None:
        self.native.data = self._pointer
        self.native.size = size
        self.native.selected = -1
        self.native.sorted = False


class SamplerChain:
    """Owns a chain of samplers, applied in the order in which they are added.

    The last one added must pick a token: `add_dist`, `add_greedy`, mirostat or adaptive-p.
    """

    def __init__(self, library: Library, vocab: Vocab) -> None:
        self._library = library
        self._lib = library.lib
        self._vocab = vocab
        params = self._lib.llama_sampler_chain_default_params()
        params.no_perf = True
        self._chain = library.ffi.gc(
            self._lib.llama_sampler_chain_init(params), self._lib.llama_sampler_free
        )

    def __len__(self) -> int:
        return int(self._lib.llama_sampler_chain_n(self._chain))

    def close(self) -> None:
        """Free the samplers; the chain cannot be used any more."""
        self._library.ffi.release(self._chain)

    def sample(self, context: Context, row: int) -> int:
        """Pick a token from the logits of a row of the last batch, and remember it."""
        return int(self._lib.llama_sampler_sample(self._chain, context.pointer, row))

    def apply(self, candidates: Candidates) -> int:
        """Pick a token from candidates without remembering it; NO_TOKEN when none is left."""
        self._lib.llama_sampler_apply(self._chain, candidates.native)
        return candidates.selected

    def accept(self, token: int) -> None:
        """Remember a token, for the samplers that look back."""
        self._lib.llama_sampler_accept(self._chain, token)

    def add_greedy(self) -> None:
        """Pick the most likely token."""
        self._add(self._lib.llama_sampler_init_greedy())

    def add_dist(self, seed: int) -> None:
        """Pick at random by probability."""
        self._add(self._lib.llama_sampler_init_dist(seed))

    def add_top_k(self, k: int) -> None:
        """Keep the k most likely tokens; k <= 0 keeps all."""
        self._add(self._lib.llama_sampler_init_top_k(k))

    def add_top_p(self, p: float, min_keep: int) -> None:
        """Keep the most likely tokens that together have probability p."""
        self._add(self._lib.llama_sampler_init_top_p(p, min_keep))

    def add_min_p(self, p: float, min_keep: int) -> None:
        """Keep tokens of at least p times the probability of the best."""
        self._add(self._lib.llama_sampler_init_min_p(p, min_keep))

    def add_typical(self, p: float, min_keep: int) -> None:
        """Keep locally typical tokens."""
        self._add(self._lib.llama_sampler_init_typical(p, min_keep))

    def add_top_n_sigma(self, n: float) -> None:
        """Keep tokens within n standard deviations of the best logit."""
        self._add(self._lib.llama_sampler_init_top_n_sigma(n))

    def add_xtc(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        """With some probability remove all but the least likely token above a threshold."""
        self._add(self._lib.llama_sampler_init_xtc(probability, threshold, min_keep, seed))

    def add_temperature(self, temperature: float, dynatemp_range: float, exponent: float) -> None:
        """Scale the logits; with a range, by their entropy."""
        self._add(self._lib.llama_sampler_init_temp_ext(temperature, dynatemp_range, exponent))

    def add_mirostat(self, version: int, seed: int, tau: float, eta: float) -> None:
        """Pick a token while steering towards the surprise tau."""
        if version == 1:
            sampler = self._lib.llama_sampler_init_mirostat(
                self._vocab.num_tokens, seed, tau, eta, MIROSTAT_M
            )
        else:
            sampler = self._lib.llama_sampler_init_mirostat_v2(seed, tau, eta)
        self._add(sampler)

    def add_adaptive_p(self, target: float, decay: float, seed: int) -> None:
        """Pick tokens near a target probability over time."""
        self._add(self._lib.llama_sampler_init_adaptive_p(target, decay, seed))

    def add_penalties(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        """Make tokens among the last n less likely."""
        self._add(
            self._lib.llama_sampler_init_penalties(
                self._vocab.num_tokens, last_n, repeat, frequency, presence
            )
        )

    def add_dry(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
    ) -> None:
        """Make tokens less likely that would prolong a repetition among the last n."""
        ffi = self._library.ffi
        texts = [ffi.new("char[]", encode_text(breaker)) for breaker in breakers]
        self._add(
            self._lib.llama_sampler_init_dry(
                self._vocab.pointer,
                multiplier,
                base,
                allowed_length,
                last_n,
                ffi.new("const char *[]", texts),
                len(texts),
            )
        )

    def add_logit_bias(self, biases: Sequence[tuple[int, float]]) -> None:
        """Add a bias to the logits of some tokens; minus infinity bans one."""
        native = self._library.ffi.new("llama_logit_bias[]", list(biases))
        self._add(
            self._lib.llama_sampler_init_logit_bias(self._vocab.num_tokens, len(biases), native)
        )

    def _add(self, sampler: Any) -> None:
        assert sampler != self._library.ffi.NULL
        self._lib.llama_sampler_chain_add(self._chain, sampler)  # the chain owns it now


class Grammar:
    """Owns the state of a GBNF grammar while a text grows."""

    def __init__(self, library: Library, vocab: Vocab, gbnf: str) -> None:
        """Raises InvalidRequest when the grammar cannot be parsed or has no rule `root`."""
        self._ffi = library.ffi
        self._lib = library.lib
        if "\0" in gbnf:  # ends a C string; llama.cpp takes an empty one for no grammar at all
            raise InvalidRequest("the grammar cannot be parsed: it holds NUL", param="grammar")
        library.warn_of_errors()
        pointer = self._lib.llama_sampler_init_grammar(vocab.pointer, encode_text(gbnf), b"root")
        if pointer == library.ffi.NULL:
            reason = library.take_errors() or "it has no usable rule named root"
            raise InvalidRequest(f"the grammar cannot be parsed: {reason}", param="grammar")
        self._grammar = library.ffi.gc(pointer, self._lib.llama_sampler_free)

    def close(self) -> None:
        """Free the grammar; it cannot be used any more."""
        self._ffi.release(self._grammar)

    def restrict(self, candidates: Candidates) -> None:
        """Set the logits of forbidden tokens to minus infinity."""
        self._lib.llama_sampler_apply(self._grammar, candidates.native)

    def accept(self, token: int) -> None:
        """Advance by a token that `restrict` allowed; any other one would end the process."""
        self._lib.llama_sampler_accept(self._grammar, token)

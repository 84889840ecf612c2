"""Each sampler of the library can be added, and does what its name says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests import models
from tests.binding.conftest import LoadModel

from milepost.errors import InvalidRequest
from milepost.libllama import (
    Batch,
    Candidates,
    Context,
    ContextParams,
    Grammar,
    Library,
    SamplerChain,
    Vocab,
)

LETTERS = [models.token_id(letter) for letter in "abcdef"]
Add = Callable[[SamplerChain], None]

SAMPLERS: dict[str, Add] = {
    "top_k": lambda chain: chain.add_top_k(3),
    "top_p": lambda chain: chain.add_top_p(0.9, 1),
    "min_p": lambda chain: chain.add_min_p(0.05, 1),
    "typical": lambda chain: chain.add_typical(0.9, 1),
    "top_n_sigma": lambda chain: chain.add_top_n_sigma(1.0),
    "xtc": lambda chain: chain.add_xtc(1.0, 0.1, 1, 5),
    "temperature": lambda chain: chain.add_temperature(0.5, 0.2, 1.0),
    "penalties": lambda chain: chain.add_penalties(64, 1.1, 0.1, 0.1),
    "dry": lambda chain: chain.add_dry(0.8, 1.75, 2, 64, ["\n", "é", ":"]),
    "logit_bias": lambda chain: chain.add_logit_bias([(5, -math.inf), (6, 2.5)]),
}
PICKERS: dict[str, Add] = {
    "greedy": lambda chain: chain.add_greedy(),
    "dist": lambda chain: chain.add_dist(5),
    "mirostat": lambda chain: chain.add_mirostat(1, 5, 5.0, 0.1),
    "mirostat_v2": lambda chain: chain.add_mirostat(2, 5, 5.0, 0.1),
    "adaptive_p": lambda chain: chain.add_adaptive_p(0.5, 0.9, 5),
}


@pytest.fixture
def chain(library: Library, vocab: Vocab) -> SamplerChain:
    return SamplerChain(library, vocab)


@pytest.fixture
def candidates(library: Library, vocab: Vocab) -> Candidates:
    """Six letters with probabilities 32:16:8:4:2:1, and nothing else."""
    logits = np.full(vocab.num_tokens, -np.inf, np.float32)
    logits[LETTERS] = np.log([32, 16, 8, 4, 2, 1])
    found = Candidates(library, vocab.num_tokens)
    found.fill(logits)
    return found


@pytest.fixture(scope="module")
def context(load_model: LoadModel) -> Iterator[tuple[Context, int]]:
    """A context with logits in the row that comes with it."""
    with Context(load_model("full"), ContextParams(256, 64, 64, 1, 1, 1)) as context:
        batch = Batch(context.model.library, 64)
        row = batch.add_tokens(LETTERS, 0, 0, wants_last=True)
        context.decode(batch)
        yield context, row


@pytest.mark.parametrize("picker", PICKERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_sampler_goes_with_each_picker(
    chain: SamplerChain, context: tuple[Context, int], sampler: str, picker: str
) -> None:
    SAMPLERS[sampler](chain)
    PICKERS[picker](chain)
    assert len(chain) == 2
    for _ in range(20):
        assert 0 <= chain.sample(*context) < context[0].model.vocab.num_tokens
    chain.close()


def test_greedy_is_the_largest_logit(chain: SamplerChain, context: tuple[Context, int]) -> None:
    chain.add_greedy()
    assert chain.sample(*context) == int(np.argmax(context[0].logits(context[1])))


def test_the_same_seed_draws_the_same_tokens(
    library: Library, vocab: Vocab, context: tuple[Context, int]
) -> None:
    drawn = []
    for seed in (1, 1, 2):
        chain = SamplerChain(library, vocab)
        chain.add_dist(seed)
        drawn.append([chain.sample(*context) for _ in range(30)])
    assert drawn[0] == drawn[1] != drawn[2]


def test_draws_follow_the_probabilities(chain: SamplerChain, candidates: Candidates) -> None:
    chain.add_dist(3)
    counts = Counter(chain.apply(candidates) for _ in range(2000))
    assert counts[LETTERS[0]] / 2000 == pytest.approx(32 / 63, abs=0.05)
    assert set(counts) <= set(LETTERS)


@pytest.mark.parametrize(
    ("add", "num_left"),
    [
        (lambda chain: chain.add_top_k(2), 2),
        (lambda chain: chain.add_top_p(0.7, 1), 2),
        (lambda chain: chain.add_min_p(0.2, 1), 3),
        (lambda chain: chain.add_top_p(0.1, 4), 4),  # min_keep
    ],
)
def test_truncation(chain: SamplerChain, candidates: Candidates, add: Add, num_left: int) -> None:
    add(chain)
    chain.add_dist(1)
    counts = Counter(chain.apply(candidates) for _ in range(500))
    assert set(counts) == set(LETTERS[:num_left])


def test_a_bias_bans_a_token(chain: SamplerChain, candidates: Candidates) -> None:
    chain.add_logit_bias([(LETTERS[0], -math.inf)])
    chain.add_greedy()
    assert chain.apply(candidates) == LETTERS[1]


def test_penalties_look_back_on_accepted_tokens(
    chain: SamplerChain, candidates: Candidates
) -> None:
    chain.add_penalties(64, 1.0, 0.0, 2.0)
    chain.add_greedy()
    assert chain.apply(candidates) == LETTERS[0]
    chain.accept(LETTERS[0])
    assert chain.apply(candidates) == LETTERS[1]


def test_dry_breaks_repetitions(chain: SamplerChain, candidates: Candidates) -> None:
    chain.add_dry(5.0, 1.75, 2, 64, [])
    chain.add_greedy()
    for token in [*LETTERS[1:4], LETTERS[0]] * 2 + LETTERS[1:4]:
        chain.accept(token)
    assert chain.apply(candidates) != LETTERS[0]


# --- grammars ------------------------------------------------------------------------------


def allowed(grammar: Grammar, library: Library, vocab: Vocab) -> set[int]:
    candidates = Candidates(library, vocab.num_tokens)
    candidates.fill(np.zeros(vocab.num_tokens, np.float32))
    grammar.restrict(candidates)
    return {i for i in range(vocab.num_tokens) if candidates.native.data[i].logit > -math.inf}


def test_a_grammar_forces_the_text_and_then_the_end(library: Library, vocab: Vocab) -> None:
    grammar = Grammar(library, vocab, 'root ::= "ab"')
    a, b = models.token_id("a"), models.token_id("b")
    assert allowed(grammar, library, vocab) == {a}
    grammar.accept(a)
    assert allowed(grammar, library, vocab) == {b}
    grammar.accept(b)
    assert allowed(grammar, library, vocab) == vocab.eog_tokens
    grammar.close()


def test_a_grammar_allows_every_token_that_begins_its_text(library: Library, vocab: Vocab) -> None:
    grammar = Grammar(library, vocab, 'root ::= "then" [0-9]')
    texts = {vocab.token_bytes(token) for token in allowed(grammar, library, vocab)}
    assert texts == {b"t", b"th", b"the"}


@pytest.mark.parametrize(
    "gbnf",
    [
        "root ::= missing",
        'other ::= "a"',
        'root ::= "a',
        "no grammar at all",
        'root ::= root "a"',
        "root ::= [a-",
        "root ::= \ud800",
        'root ::= "a"\0',
        "\0",
    ],
)
def test_a_bad_grammar_is_refused(library: Library, vocab: Vocab, gbnf: str) -> None:
    with pytest.raises(InvalidRequest, match="the grammar cannot be parsed: .") as caught:
        Grammar(library, vocab, gbnf)
    assert caught.value.param == "grammar"


def test_only_some_tokens_are_candidates(candidates: Candidates, chain: SamplerChain) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[LETTERS] = np.arange(len(LETTERS))
    candidates.fill_some(logits, np.array([0, *LETTERS[1:3]], np.int32))
    assert candidates.possible.tolist() == LETTERS[1:3]
    assert candidates.most_likely == LETTERS[2]
    chain.add_greedy()
    assert chain.apply(candidates) == LETTERS[2]


def test_one_candidate_is_always_possible(candidates: Candidates) -> None:
    candidates.fill_one(LETTERS[5])
    assert candidates.has_any
    assert candidates.possible.tolist() == [LETTERS[5]]

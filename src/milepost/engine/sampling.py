"""Build the samplers of a request, and pick tokens with them.

What each sampler does is llama.cpp's business; here is which ones are used, in which order, with
which values, and how a grammar goes together with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Logits, Tokens
from milepost.engine.constraints import Constraint
from milepost.errors import InvalidRequest
from milepost.libllama import NO_TOKEN, Candidates, Context, Library, SamplerChain, Vocab
from milepost.protocol.messages import TokenLogprob
from milepost.protocol.sampling import RANDOM_SEED, SamplingParams


class Sampler:
    """Picks the tokens of one choice."""

    def __init__(
        self, context: Context, params: SamplingParams, seed: int, constraint: Constraint | None
    ) -> None:
        """Take a constraint over; raises InvalidRequest for an unknown sampler."""
        vocab, library = context.model.vocab, context.model.library
        self._library = library
        self._context = context
        self._params = params
        self._constraint = constraint
        self._chain = build_chain(library, vocab, params, seed, context.num_context_tokens)
        self._candidates: Candidates | None = None
        self._banned = np.array(
            sorted(
                {
                    token
                    for token, bias in biases(vocab, params)
                    if bias == -math.inf and 0 <= token < vocab.num_tokens
                }
            ),
            np.int32,
        )
        if len(self._banned) == vocab.num_tokens:
            raise InvalidRequest("every token is banned", param="logit_bias")

    def prime(self, prompt: Tokens) -> None:
        """Show the samplers that look back the end of the prompt, int32 of shape (n,).

        Negative numbers in it stand for media.
        """
        text = prompt[prompt >= 0]  # media are no words that could be repeated
        for token in text[len(text) - num_looked_back(self._params, len(text)) :].tolist():
            self._chain.accept(token)

    def close(self) -> None:
        """Free the native samplers; they may hold megabytes."""
        self._chain.close()
        if self._constraint is not None:
            self._constraint.close()

    @property
    def failure(self) -> str:
        """Why the constraint allows nothing any more, if it has run into a limit; else empty."""
        return self._constraint.failure if self._constraint is not None else ""

    def sample(self, row: int) -> int:
        """Pick a token from a row of the last batch; NO_TOKEN when the constraint allows none."""
        if self._constraint is None:
            return self._chain.sample(self._context, row)
        return self.sample_from(self._context.logits(row))

    def sample_from(self, logits: Logits) -> int:
        """Pick a token from logits, float32 of shape (num_vocab,); NO_TOKEN as in `sample`."""
        if self._candidates is None:
            self._candidates = Candidates(self._library, len(logits))
        token = self._choose(logits, self._candidates)
        if token != NO_TOKEN:
            self._chain.accept(token)
        return token

    def force(self, token: int) -> bool:
        """Take a token that was not sampled; False when the constraint does not allow it."""
        if self._constraint is not None and not self._constraint.try_accept(token):
            return False
        self._chain.accept(token)
        return True

    def _choose(self, logits: Logits, candidates: Candidates) -> int:
        """Sample freely first and ask the constraint about that token only: mostly it agrees."""
        candidates.fill(logits)
        token = self._chain.apply(candidates)
        constraint = self._constraint
        if constraint is None or (token != NO_TOKEN and constraint.try_accept(token)):
            return token
        # Without those that are banned: else the chain could be left with them only.
        allowed = np.setdiff1d(constraint.allowed(), self._banned, assume_unique=True)
        candidates.fill_some(logits, allowed)
        if not candidates.has_any:
            return NO_TOKEN
        token = self._chain.apply(candidates)
        if token != NO_TOKEN and constraint.try_accept(token):
            return token
        # Extreme settings (a temperature of 1e-38) make infinite logits, and any token of them.
        candidates.fill_some(logits, allowed)
        token = candidates.most_likely
        return token if constraint.try_accept(token) else NO_TOKEN


def num_looked_back(params: SamplingParams, num_prompt_tokens: int) -> int:
    """Return how many of the last prompt tokens the samplers need to know."""
    last_n = 0
    if has_penalties(params):
        last_n = max(last_n, look_back(params.repeat_last_n, num_prompt_tokens))
    if params.dry_multiplier != 0:
        last_n = max(last_n, look_back(params.dry_penalty_last_n, num_prompt_tokens))
    return min(last_n, num_prompt_tokens)


def look_back(last_n: int, whole: int) -> int:
    """Return a number of tokens to look back on, where -1 stands for all of them.

    More than all would only cost memory: llama.cpp makes a ring buffer of this length.
    """
    return whole if last_n < 0 else min(last_n, whole)


def has_penalties(params: SamplingParams) -> bool:
    """Return whether any of the repetition penalties changes anything."""
    return params.repeat_last_n != 0 and (
        params.repeat_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
    )


def build_chain(
    library: Library, vocab: Vocab, params: SamplingParams, seed: int, num_context_tokens: int
) -> SamplerChain:
    """Return the samplers of a request in their order; those that change nothing are left out."""
    chain = SamplerChain(library, vocab)
    if added := biases(vocab, params):
        chain.add_logit_bias(added)
    if params.mirostat:
        chain.add_temperature(params.temperature, 0.0, 1.0)
        chain.add_mirostat(params.mirostat, seed, params.mirostat_tau, params.mirostat_eta)
        return chain
    greedy = is_greedy(params)
    plan = ChainPlan(chain, params, seed, num_context_tokens)
    for name in params.samplers:
        if name not in SAMPLERS:
            raise InvalidRequest(
                f"sampler {name!r} is unknown; known are {', '.join(SAMPLERS)}", param="samplers"
            )
        if not greedy or name in ("penalties", "dry"):
            SAMPLERS[name](plan)
    if "adaptive_p" in params.samplers:
        chain.add_adaptive_p(params.adaptive_target, params.adaptive_decay, seed)
    elif greedy:
        chain.add_greedy()
    else:
        chain.add_dist(seed)
    return chain


def biases(vocab: Vocab, params: SamplingParams) -> list[tuple[int, float]]:
    """Return what is added to the logits of tokens, those that must never be sampled included."""
    banned = [*vocab.suppressed_tokens, *(vocab.eog_tokens if params.ignore_eos else ())]
    return [*params.logit_bias, *((token, -math.inf) for token in banned)]


def is_greedy(params: SamplingParams) -> bool:
    """Return whether the most likely token always wins, so that truncation can be skipped.

    Top-k, top-p, min-p and top-n-sigma always keep it; typical and XTC may not.
    """
    return (
        params.temperature <= 0
        and params.dynatemp_range == 0
        and "temperature" in params.samplers
        and "adaptive_p" not in params.samplers
        and not ("typ_p" in params.samplers and params.typical_p < 1)
        and not ("xtc" in params.samplers and params.xtc_probability > 0)
    )


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """What the functions below add to, and from which values."""

    chain: SamplerChain
    params: SamplingParams
    seed: int
    num_context_tokens: int


def _add_penalties(plan: ChainPlan) -> None:
    params = plan.params
    if has_penalties(params):
        plan.chain.add_penalties(
            look_back(params.repeat_last_n, plan.num_context_tokens),
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )


def _add_dry(plan: ChainPlan) -> None:
    params = plan.params
    if params.dry_multiplier != 0 and params.dry_penalty_last_n != 0:
        plan.chain.add_dry(
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            look_back(params.dry_penalty_last_n, plan.num_context_tokens),
            params.dry_sequence_breakers,
        )


def _add_top_n_sigma(plan: ChainPlan) -> None:
    if plan.params.top_n_sigma > 0:
        plan.chain.add_top_n_sigma(plan.params.top_n_sigma)


def _add_top_k(plan: ChainPlan) -> None:
    if plan.params.top_k > 0:
        plan.chain.add_top_k(plan.params.top_k)


def _add_typical(plan: ChainPlan) -> None:
    if plan.params.typical_p < 1:
        plan.chain.add_typical(plan.params.typical_p, plan.params.min_keep)


def _add_top_p(plan: ChainPlan) -> None:
    if plan.params.top_p < 1:
        plan.chain.add_top_p(plan.params.top_p, plan.params.min_keep)


def _add_min_p(plan: ChainPlan) -> None:
    if plan.params.min_p > 0:
        plan.chain.add_min_p(plan.params.min_p, plan.params.min_keep)


def _add_xtc(plan: ChainPlan) -> None:
    params = plan.params
    if params.xtc_probability > 0:
        plan.chain.add_xtc(params.xtc_probability, params.xtc_threshold, params.min_keep, plan.seed)


def _add_temperature(plan: ChainPlan) -> None:
    params = plan.params
    plan.chain.add_temperature(params.temperature, params.dynatemp_range, params.dynatemp_exponent)


def _add_nothing(plan: ChainPlan) -> None:
    """Adaptive-p picks the token, so it goes to the end of the chain wherever it is named."""


# Names as in llama-server's `samplers` field.
SAMPLERS: dict[str, Callable[[ChainPlan], None]] = {
    "penalties": _add_penalties,
    "dry": _add_dry,
    "top_n_sigma": _add_top_n_sigma,
    "top_k": _add_top_k,
    "typ_p": _add_typical,
    "top_p": _add_top_p,
    "min_p": _add_min_p,
    "xtc": _add_xtc,
    "temperature": _add_temperature,
    "adaptive_p": _add_nothing,
}


def seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of a choice: random stays random, others count up."""
    if seed == RANDOM_SEED or choice == 0:
        return seed
    return (seed + choice) % RANDOM_SEED


def token_logprob(
    logits: Logits, token: int, num_top: int, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """Return the log probability of a token before any sampler, and of the most likely ones.

    `logits` is float32 of shape (num_vocab,).
    """
    peak = float(logits.max())
    log_sum = peak + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    top: Sequence[int] = ()
    if num_top > 0:
        num_top = min(num_top, len(logits))
        candidates = np.argpartition(logits, -num_top)[-num_top:]
        top = candidates[np.argsort(-logits[candidates], kind="stable")].tolist()
    return TokenLogprob(
        token=token,
        token_bytes=token_bytes(token),
        logprob=float(logits[token]) - log_sum,
        top=tuple((rival, token_bytes(rival), float(logits[rival]) - log_sum) for rival in top),
    )

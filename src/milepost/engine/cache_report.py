"""Reads out of tokens and boundaries why a prompt had to be computed. Pure.

Facts are what was found, done and counted. The reason is an interpretation of them: the engine
knows tokens and where messages end, but neither their text nor what the client meant. It names what
most of the prefill is put down to, and says `branch` or `edited_message` where it cannot tell.

                pos                    a message begins          end
    prompt  ─────┬── the message ───────┬── as before ────────────┤
                 └── what it was ── ... ┴── as before ── ...
    replaced     0                      rejoin
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Tokens
from milepost.cache.match import Match, Missing
from milepost.kinds import SYSTEM_ROLES, TOOL_ROLES
from milepost.protocol.cache import CacheReason, RestoreKind
from milepost.protocol.messages import (
    Boundary,
    Generate,
)

MESSAGE_KINDS = ("message_end", "prompt_end")

# All arbitrary.
MIN_KNOWN_TOKENS = 16  # fewer are shared by any two prompts of one template
MIN_TWICE_TOKENS = 64  # fewer are computed within one micro-batch, and no reason to look for causes
MIN_COMPACTED_MESSAGES = 4  # fewer that are gone are called pruned
REJOIN_TOKENS = 32  # the beginning of a message that is compared, with what follows it
MIN_REJOIN_TOKENS = 12
MAX_REJOIN_TRIES = 16  # messages after a divergence that are looked for
KEPT_TOKENS = 8  # of an answer whose reasoning is gone
MAX_KEPT_SKIP = 3  # tokens at a seam that may have merged differently


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """What was known of a prompt, and what was reused."""

    is_reuse_wanted: bool
    num_known: int
    missing: Missing  # why what is known cannot be restored
    replaced: tuple[Tokens, ...]  # how the history that it parts from goes on
    num_reused: int = 0
    source: RestoreKind = "none"
    num_bytes: int = 0
    restore_s: float = 0.0
    num_failed: int = 0
    num_refused: int = 0  # deeper sources that would have been slower

    @classmethod
    def of_match(cls, match: Match, *, is_reuse_wanted: bool) -> PrefixFacts:
        """Return the facts before anything is reused, without the bytes that a match refers to."""
        return cls(is_reuse_wanted, match.num_known, match.missing, match.replaced)


def count_twice(facts: PrefixFacts, num_prompt_tokens: int) -> int:
    """Return how many tokens are known but computed again; the last one does not count.

    It has to be computed for its logits, unless those were kept as well.
    """
    return max(0, min(facts.num_known, num_prompt_tokens - 1) - facts.num_reused)


def is_diverging(facts: PrefixFacts) -> bool:
    """Return whether the prompt goes on otherwise than what is known."""
    return bool(facts.replaced)


def find_message(boundaries: Iterable[Boundary], pos: int) -> Boundary | None:
    """Return the end of the message that a position lies in; None after the last one.

    `system_end` stands for a message only where tools make a system prompt without one: else it
    lies in the head of the next message, as far as all conversations share that.
    """
    ends = [found for found in boundaries if found.kind in MESSAGE_KINDS]
    if not any(end.role in SYSTEM_ROLES for end in ends):
        ends = [found for found in boundaries if found.kind == "system_end"] + ends
    return next((end for end in ends if end.pos > pos), None)


def choose_reason(message: Generate, prompt: Tokens, facts: PrefixFacts) -> CacheReason:
    """Return what most of a prefill is put down to."""
    if not facts.is_reuse_wanted:
        return "cache_off"
    num_twice, num_new = count_twice(facts, len(prompt)), len(prompt) - facts.num_known
    is_most = num_twice >= num_new or not is_diverging(facts)
    if num_twice >= MIN_TWICE_TOKENS and is_most:
        return _explain_loss(facts)
    if max(facts.num_known, facts.num_reused) == 0:
        return "first_request"
    if not is_diverging(facts):
        return "extended"
    if facts.num_known < MIN_KNOWN_TOKENS:
        return "first_request"
    return _explain_divergence(message, prompt, facts)


def _explain_loss(facts: PrefixFacts) -> CacheReason:
    if facts.num_failed:
        return "restore_failed"
    if facts.num_refused or not facts.missing:
        return "restore_refused_slower"
    return facts.missing


def _explain_divergence(message: Generate, prompt: Tokens, facts: PrefixFacts) -> CacheReason:
    pos = facts.num_known
    own = find_message(message.prompt.boundaries, pos)
    if own is None:
        return "branch"
    if own.role in SYSTEM_ROLES:
        return "changed_tools" if message.prompt.has_new_tools else "changed_system"
    replaced = np.concatenate(facts.replaced)
    heads = _find_heads(message.prompt.boundaries, prompt)
    rejoin = _find_rejoin(message.prompt.boundaries, prompt, pos, replaced)
    if rejoin is not None:
        at, known_at = rejoin
        num_gone = _count(replaced[:known_at], heads) - _count(prompt[pos:at], heads)
        if num_gone > 0:
            return "compacted" if num_gone >= MIN_COMPACTED_MESSAGES else "pruned_history"
    old = _first_message(replaced, heads)
    if own.pos - pos < len(old):
        if own.role in TOOL_ROLES:
            return "pruned_history"
        if own.role == "assistant" and _is_kept(prompt[pos : own.pos], old):
            return "stripped_reasoning"
    is_edited = rejoin is not None or own.role == "assistant" or _is_begun(message, own, pos)
    return "edited_message" if is_edited else "branch"


def _is_begun(message: Generate, own: Boundary, pos: int) -> bool:
    """Return whether a message that is not the last begins as it did; the last one may be typed."""
    starts = [end.pos for end in message.prompt.boundaries if end.pos <= pos]
    return own.kind == "message_end" and pos - max(starts, default=0) >= MIN_KNOWN_TOKENS


def _find_heads(boundaries: Sequence[Boundary], prompt: Tokens) -> Tokens:
    """Return the tokens that messages begin with."""
    ends = [found.pos for found in boundaries if found.kind in MESSAGE_KINDS]
    return np.unique(prompt[[pos for pos in ends if pos < len(prompt)]])


def _count(tokens: Tokens, heads: Tokens) -> int:
    return int(np.isin(tokens, heads).sum())


def _first_message(replaced: Tokens, heads: Tokens) -> Tokens:
    """Return the rest of the message that the replaced tokens begin in."""
    found = np.flatnonzero(np.isin(replaced, heads))
    return replaced[: found[0]] if len(found) else replaced


def _find_rejoin(
    boundaries: Sequence[Boundary], prompt: Tokens, pos: int, replaced: Tokens
) -> tuple[int, int] | None:
    """Return where a later message of the prompt begins, and where it is in what was replaced."""
    starts = [found.pos for found in boundaries if found.kind == "message_end" and found.pos > pos]
    for start in starts[:MAX_REJOIN_TRIES]:
        window = prompt[start : start + REJOIN_TOKENS]
        if len(window) >= MIN_REJOIN_TOKENS:
            found = _find_run(replaced, window)
            if found >= 0:
                return start, found
    return None


def _is_kept(rest: Tokens, old: Tokens) -> bool:
    """Return whether the rest of a message is in what it was, apart from how it ends."""
    for skip in range(MAX_KEPT_SKIP):
        run = rest[skip : max(len(rest) - 2, 0)][:KEPT_TOKENS]  # two: an end mark and a newline
        if len(run) == 0:
            return skip == 0
        if _find_run(old, run) >= 0:
            return True
    return False


def _find_run(tokens: Tokens, run: Tokens) -> int:
    """Return where a run of tokens first occurs, -1 if it does not."""
    last = len(tokens) - len(run)
    starts = np.flatnonzero(tokens[: last + 1] == run[0]) if last >= 0 else np.empty(0, np.int64)
    if len(starts) == 0:
        return -1
    equal = (tokens[starts[:, None] + np.arange(len(run))] == run).all(axis=1)
    return int(starts[equal.argmax()]) if equal.any() else -1

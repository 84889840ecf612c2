"""What the next batch computes: pure functions over plain records.

One token for every decoding sequence comes first. The rest of the batch goes to prefills, shared
between them, so that a short prompt does not wait for a long one. Media are computed in a batch of
their own, a part of one at a time, and take turns with the prefills of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Longest time that one prefill chunk may hold up streams that decode. Arbitrary: half a second is
# a visible stutter, but shorter chunks make a prefill slower (in chunks of 64 tokens by a third).
MAX_STALL_S = 0.5
# Longest time until a new request is looked at while nothing decodes. Arbitrary.
MAX_CHUNK_S = 4.0
# Fewer tokens a chunk cost more than they free: a micro-batch of 32 is half as fast (measured).
MIN_CHUNK_TOKENS = 32


# Whether a media item may be computed in parts: where its tokens all see each other, it may not.
MediaChunking = Literal["parts", "whole"]


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """What one sequence has to compute: `num_missing` tokens that its slot does not hold yet."""

    slot_id: int
    num_missing: int
    is_decoding: bool
    media: MediaChunking | None = None  # it is a media item, at hand, that comes next


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step of the loop computes."""

    scheduled: list[ScheduledTokens]  # of the batch of tokens
    media: ScheduledTokens | None = None  # computed after it


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """What one sequence gets in a batch."""

    slot_id: int
    num_tokens: int
    is_decoding: bool


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Sizes that bound a batch."""

    num_batch_tokens: int
    num_ubatch_tokens: int


def plan_step(
    pending: Sequence[PendingTokens],
    limits: BatchLimits,
    prefill_tokens_per_s: float,
    *,
    was_media: bool,
) -> StepPlan:
    """Return what the next step computes; `was_media`: a media item was computed in the last one.

    Beside the tokens of decoding sequences a step has either a part of a media item or prefills of
    text, so that these never wait longer than for one of them.
    """
    texts = [entry for entry in pending if entry.media is None]
    media = next((entry for entry in pending if entry.media is not None), None)
    decoding = [entry for entry in texts if entry.is_decoding]
    if media is None or (was_media and len(decoding) < len(texts)):
        return StepPlan(plan_batch(texts, limits, prefill_tokens_per_s))
    most = choose_chunk_tokens(limits, prefill_tokens_per_s, others_decode=bool(decoding))
    is_whole = media.media == "whole"
    num_tokens = media.num_missing if is_whole else min(media.num_missing, most)
    part = ScheduledTokens(media.slot_id, num_tokens, is_decoding=False)
    return StepPlan(plan_batch(decoding, limits, prefill_tokens_per_s), part)


def plan_batch(
    pending: Sequence[PendingTokens], limits: BatchLimits, prefill_tokens_per_s: float
) -> list[ScheduledTokens]:
    """Return what is in the next batch, decoding sequences first, then prefills by age.

    `pending` is ordered by age, oldest first. `prefill_tokens_per_s` is the measured rate, 0 while
    none is known.
    """
    decoding = [entry for entry in pending if entry.is_decoding and entry.num_missing]
    prefilling = [entry for entry in pending if not entry.is_decoding and entry.num_missing]
    scheduled = [
        ScheduledTokens(entry.slot_id, entry.num_missing, is_decoding=True) for entry in decoding
    ]
    if prefilling:
        budget = choose_chunk_tokens(
            limits, prefill_tokens_per_s, others_decode=bool(decoding)
        ) - len(decoding)
        scheduled += split_budget(prefilling, max(budget, 1))
    return scheduled


def choose_chunk_tokens(
    limits: BatchLimits, prefill_tokens_per_s: float, *, others_decode: bool
) -> int:
    """Return the largest number of prompt tokens for the next batch.

    While nothing decodes it is a multiple of the micro-batch, so that the micro-batches of a
    prompt are the same ones however it is cut into batches.
    """
    micro, most = limits.num_ubatch_tokens, limits.num_batch_tokens
    if others_decode:
        fits = int(prefill_tokens_per_s * MAX_STALL_S) or micro
        return min(max(fits, MIN_CHUNK_TOKENS), micro, most)
    fits = int(prefill_tokens_per_s * MAX_CHUNK_S) // micro * micro or micro
    return min(fits, most // micro * micro)


def split_budget(prefilling: Sequence[PendingTokens], budget: int) -> list[ScheduledTokens]:
    """Share a number of tokens evenly; what one does not need goes to the oldest others."""
    grants = dict.fromkeys((entry.slot_id for entry in prefilling), 0)
    even = max(budget // len(prefilling), 1)
    left = budget
    for entry in prefilling:
        grants[entry.slot_id] = min(entry.num_missing, even, left)
        left -= grants[entry.slot_id]
    for entry in prefilling:
        more = min(entry.num_missing - grants[entry.slot_id], left)
        grants[entry.slot_id] += more
        left -= more
    return [
        ScheduledTokens(slot_id, count, is_decoding=False)
        for slot_id, count in grants.items()
        if count
    ]

"""Says in plain English what became of a prompt."""

from __future__ import annotations

from milepost.chat.prompts.reply_matching import ReplyCounts
from milepost.protocol.cache import (
    CacheReason,
    CacheReport,
    RestoreKind,
)

SOURCES: dict[RestoreKind, str] = {
    "none": "nothing",
    "kv_cache": "the KV cache",
    "parked": "the KV cache",
    "rewind": "the KV cache, rewound to a kept state",
    "ram": "memory",
    "disk": "disk",
}
# `{place}` is where the prompt parts from what is known.
REASONS: dict[CacheReason, str] = {
    "first_request": "No earlier request that is still known began like this one.",
    "extended": "All that is known of it is unchanged: it goes on where an earlier request ended, "
    "or was sent before.",
    "edited_message": "It was changed at {place}, while what follows is new or as before.",
    "stripped_reasoning": "At {place} something is left out that was there before, most likely "
    "the model's reasoning.",
    "changed_system": "The system prompt was changed, at {place}, so that nothing after that "
    "place can be reused.",
    "changed_tools": "The tools were changed, at {place}, so that nothing after that place can "
    "be reused.",
    "pruned_history": "The client shortened or removed an old message, at {place}.",
    "compacted": "The client replaced many messages by few, from {place} on.",
    "branch": "It takes another way than earlier requests from {place} on.",
    "evicted": "What was kept of it had to make room; a larger --cache-ram keeps more of all "
    "conversations, a larger --ctx-checkpoints more of each.",
    "no_checkpoint_at": "This model can only go on from kept states, and none was kept where it "
    "would have been needed.",
    "not_saved": "What was computed before was never written into the cache, or without the "
    "cells that it needs.",
    "window_lost": "This model can only go on while it has the cells of its sliding window, and "
    "they were not kept where they would have been needed.",
    "restore_refused_slower": "Restoring more of it was estimated to take longer than computing "
    "it again.",
    "restore_failed": "What was kept of it could not be restored; the engine's log has the cause.",
    "cache_off": "The request asked for it with cache_prompt.",
}


# Why a reply has other tokens than those that were sampled.
REPLY_OUTCOMES = {
    "unknown": "{count} not sampled here, or too long ago",
    "changed": "{count} changed by the client",
    "without_reasoning": "{count} sent without reasoning (see --restore-reasoning)",
    "written_differently": "{count} written by the template in another way, or in part",
}


def explain(report: CacheReport, num_prompt_tokens: int) -> str:
    """Return two or three sentences about one prompt."""
    return f"{_count(report, num_prompt_tokens)} {_reason(report)}"


def explain_replies(counts: ReplyCounts) -> str:
    """Return a sentence or two about the replies in a conversation."""
    if counts.total == 0:
        return "There are no replies of the model in it."
    sentence = f"{counts.exact} of {counts.total} replies have the tokens that were sampled."
    numbers = {name: getattr(counts, name) for name in REPLY_OUTCOMES}
    reasons = [REPLY_OUTCOMES[name].format(count=n) for name, n in numbers.items() if n]
    return f"{sentence} Made anew: {', '.join(reasons)}." if reasons else sentence


def _count(report: CacheReport, num_prompt_tokens: int) -> str:
    if report.num_reused == 0:
        start = f"Nothing of the {num_prompt_tokens} prompt tokens was reused"
    else:
        start = (
            f"{report.num_reused} of {num_prompt_tokens} prompt tokens were reused from "
            f"{SOURCES[report.source]}"
        )
    if report.num_restored_bytes:
        start += f" ({report.num_restored_bytes / 1e6:.1f} MB in {report.restore_ms:.1f} ms)"
    again = f", {report.num_prefilled_twice} of them again" if report.num_prefilled_twice else ""
    media = ""
    if report.num_media:
        media = (
            f" Of {report.num_media} images and audios, {report.num_media_encoded} were encoded."
        )
    return f"{start}; {report.num_prefilled} were computed{again}.{media}"


def _reason(report: CacheReport) -> str:
    found = report.divergence
    place = "its end"
    if found is not None:
        place = f"token {found.pos}"
        if found.message_index >= 0:
            place += f" in message {found.message_index} ({found.role})"
    return REASONS[report.reason].format(place=place)

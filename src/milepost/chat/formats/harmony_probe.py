"""Recognises gpt-oss's channels: they hold text and reasoning too, and no history shows all."""

from __future__ import annotations

from dataclasses import replace

from milepost.chat.formats.probe_texts import ANSWER, USER, Probe, answer, between, user
from milepost.chat.formats.reply_format import (
    Affix,
    HarmonyBody,
    ReasoningFormat,
    ReplyFormat,
    ToolCallFormat,
)

REPLY = Affix("<|channel|>final<|message|>")
REASONING = ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>")


def recognise_harmony(probe: Probe, reasoning: ReasoningFormat | None) -> ReplyFormat | None:
    """Return the format if replies stand in a channel of their own."""
    lead = between(probe.history(user(), answer(), user()), USER, ANSWER)
    lead = lead or between(probe.history(user(), answer()), USER, ANSWER)
    if lead is None or not lead.endswith(REPLY.start):
        return None
    earlier = reasoning.earlier if reasoning is not None else "dropped"
    calls = ToolCallFormat(HarmonyBody(), takes_several=False)
    return ReplyFormat(replace(REASONING, earlier=earlier), calls, REPLY)

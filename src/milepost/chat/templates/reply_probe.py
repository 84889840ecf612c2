"""Learns how a model writes its replies, from its template alone.

Called once by `ChatTemplate.reply_format`. Raises nothing: what a template does not show is None.
"""

from __future__ import annotations

from milepost.chat.formats.call_formats import recognise_calls, recognise_reply
from milepost.chat.formats.probe_texts import Probe
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.reasoning_probe import probe_content, probe_reasoning


def probe_reply_format(probe: Probe) -> ReplyFormat:
    """Return how replies are written."""
    reasoning = probe_reasoning(probe)
    whole = recognise_reply(probe, reasoning)
    if whole is not None:
        return whole
    return ReplyFormat(
        reasoning, recognise_calls(probe, reasoning), probe_content(probe, reasoning)
    )

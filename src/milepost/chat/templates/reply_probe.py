"""Learns how a model writes its replies, from its template alone.

Called once by `ChatTemplate.reply_format`. Raises nothing: what a template does not show is None.
"""

from __future__ import annotations

from milepost.chat.formats.braced_calls_probe import recognise_braced_calls
from milepost.chat.formats.call_check import explains
from milepost.chat.formats.call_texts import read_call_texts
from milepost.chat.formats.described_calls import read_described_calls
from milepost.chat.formats.harmony_probe import recognise_harmony
from milepost.chat.formats.probe_texts import Probe
from milepost.chat.formats.pythonic_probe import recognise_pythonic, recognise_tool_list
from milepost.chat.formats.reply_format import ReasoningFormat, ReplyFormat, ToolCallFormat
from milepost.chat.formats.tool_call_probe import (
    read_json_calls,
    read_named_calls,
    read_tagged_calls,
)
from milepost.chat.templates.reasoning_probe import probe_content, probe_reasoning

# The first that finds its format is right: the later ones see less and less of a structure.
READERS = (
    recognise_braced_calls,
    recognise_pythonic,
    read_json_calls,
    read_named_calls,
    read_tagged_calls,
)


def probe_reply_format(probe: Probe) -> ReplyFormat:
    """Return how replies are written."""
    reasoning = probe_reasoning(probe)
    harmony = recognise_harmony(probe, reasoning)
    if harmony is not None:
        return harmony
    return ReplyFormat(
        reasoning, probe_tool_calls(probe, reasoning), probe_content(probe, reasoning)
    )


def probe_tool_calls(probe: Probe, reasoning: ReasoningFormat | None) -> ToolCallFormat | None:
    """Return what tool calls look like, None if the template does not show it."""
    texts = read_call_texts(probe, reasoning)
    if texts is not None:
        for reader in READERS:
            found = reader(texts)
            if found is not None and explains(found, texts):
                return found
    return recognise_tool_list(probe) or read_described_calls(probe)

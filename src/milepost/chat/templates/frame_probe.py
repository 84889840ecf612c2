"""Learns what a template writes between two messages, from a small window of a real conversation.

    …last words<|im_end|>\\n<|im_start|>user\\n<tool_response>\\nfirst words…
               └ trailer ──┘└ header ─────────────────────────┘

The end of a message is where the prompt of the conversation up to it, without a generation prompt,
stops agreeing with the longer one. No sample conversation shows all that real ones make a template
write there: it depends on tools, on texts and on what came before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.chat.conversation.conversation import (
    TEXT_FIELDS,
    Conversation,
    mark_messages,
    take_marks_out,
    take_messages,
)
from milepost.chat.conversation.rendered_prompt import common_prefix
from milepost.chat.conversation.sentinels import choose_sentinel
from milepost.chat.formats.probe_texts import Probe

# Arbitrary, by what published templates write.
MAX_TAIL_CHARS = 64  # that a shorter prompt may write after the last message only
NUM_TAIL_CHARS = 24

# Role and whether there are tool calls, of a message and of the next; the generation prompt is next
# to the last one.
Pair = tuple[str, bool, str, bool]


@dataclass(frozen=True, slots=True)
class Frame:
    """What was seen between two messages; None for a side that is not always the same."""

    trailer: str | None
    header: str | None


def read_frames(probe: Probe, window: Conversation, num_before: int) -> list[Frame]:
    """Return what stands after the first `num_before` messages; costs two renderings, or four."""
    windows = [_without_reasoning(window, num_before)]
    if any("reasoning_content" in message for message in window.messages[num_before:]):
        windows.append(_without_reasoning(window, len(window.messages)))
    frames = (_read_frame(probe, each, num_before) for each in windows)
    return [frame for frame in frames if frame is not None]


def _read_frame(probe: Probe, window: Conversation, num_before: int) -> Frame | None:
    is_last = num_before == len(window.messages)
    before = take_messages(window, range(num_before), window.tools)
    sentinel = choose_sentinel(window.messages, window.tools, window.documents)
    if sentinel is None:
        return None
    shorter = probe.ask(before, add_generation_prompt=False)
    marked = probe.ask(mark_messages(window, sentinel), add_generation_prompt=is_last)
    if shorter is None or marked is None:
        return None
    text, spans = take_marks_out(marked, sentinel)
    low = spans[num_before - 1].end if num_before - 1 in spans else None
    following = spans.get(num_before)
    high = len(text) if is_last else following.start if following else None
    end = _find_end(shorter, text, low or 0, len(text) if high is None else high)
    has_calls = "tool_calls" in window.messages[num_before - 1]  # which stand after the text
    return Frame(
        trailer=None if low is None or has_calls else text[low:end],
        header=None if high is None else text[end:high],
    )


def _without_reasoning(window: Conversation, stop: int) -> Conversation:
    """Return the window without reasoning before `stop`: it may go when a message is added.

    Texts are stripped, so that no white space of theirs is taken for a part of the frame.
    """
    messages = []
    for i, message in enumerate(window.messages):
        kept = {
            key: value.strip() if key in TEXT_FIELDS else value for key, value in message.items()
        }
        if i < stop:
            kept.pop("reasoning_content", None)
        messages.append(kept)
    return replace(window, messages=messages)


def _find_end(shorter: str, text: str, low: int, high: int) -> int:
    """Return where, between `low` and `high`, what ends as the shorter prompt does ends."""
    end = common_prefix(shorter, text)
    if end < max(low, len(shorter) - MAX_TAIL_CHARS):
        # The shorter prompt is different before that: Qwen3 puts empty reasoning into the last
        # reply only. Its last words still show where the message ends.
        tail = shorter[-NUM_TAIL_CHARS:]
        pos = text.rfind(tail, max(0, low - len(tail)), high)
        end = pos + len(tail) if pos >= 0 else end
    return min(max(end, low), high)

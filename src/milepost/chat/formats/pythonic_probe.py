"""Recognises calls written as Python: `[name(key="value", other=1)]`.

LFM2's templates never show one: there the list of tools stands in markers that are recognised, or
the vocabulary has tokens of its own for calls.
"""

from __future__ import annotations

from milepost.chat.formats.call_texts import CallTexts, read_surroundings
from milepost.chat.formats.probe_texts import KEYS, NAMES, VALUES, Probe, user
from milepost.chat.formats.reply_format import Affix, PythonicBody, ToolCallFormat

TOOL_LIST = "<|tool_list_start|>"
CALLS = Affix("<|tool_call_start|>", "<|tool_call_end|>")


def recognise_pythonic(texts: CallTexts) -> ToolCallFormat | None:
    """Return the format if keys stand as arguments of Python do behind the name."""
    around = read_surroundings(texts, _find_call)
    if around is None:
        return None
    if texts.two is None:
        start, end = around.opening, around.closing
    else:
        start = around.section.start + around.opening
        end = around.closing + around.section.end
    return ToolCallFormat(
        PythonicBody(),
        Affix(start.removesuffix("[").strip(), end.removeprefix("]").strip()),
        takes_several=texts.two is not None,
    )


def recognise_tool_list(probe: Probe) -> ToolCallFormat | None:
    """Return LFM2's format where a prompt or the vocabulary has its markers."""
    prompt = probe.prompt(user(), tools=True) or ""
    if TOOL_LIST in prompt or (NAMES[0] in prompt and probe.controls >= {CALLS.start, CALLS.end}):
        return ToolCallFormat(PythonicBody(), CALLS)
    return None


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(f"{NAMES[number]}({KEYS[number][0]}=")
    last_value = text.find(VALUES[number][1], start)
    end = text.find(")", last_value)
    return (start, end + 1) if min(start, last_value, end) >= 0 else None

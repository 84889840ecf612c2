"""Learns how a model writes its replies: where reasoning stands, what calls and texts look like.

Most templates write reasoning in some place of a history: there its markers are what is around it.
Others only begin it in the generation prompt, or cut it out of contents that hold it. Calls are
recognised by the formats (`call_formats`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from milepost.chat.formats.call_formats import recognise_calls, recognise_reply
from milepost.chat.formats.probe_texts import (
    ANSWER,
    LATER_USER,
    NAMES,
    REASONING,
    USER,
    Probe,
    answer,
    between,
    call,
    calling,
    result,
    text_after,
    user,
)
from milepost.chat.formats.reply_format import (
    Affix,
    EarlierReasoning,
    ReasoningFormat,
    ReplyFormat,
)
from milepost.chat.formats.text_pieces import (
    TAG,
    last_marker,
    shared_end,
    shared_start,
    split_pieces,
)

REASONED = {"reasoning_content": REASONING}
# `content.split('</think>')`, `'</think>' in content`
CUTTING = re.compile(
    r"""split\(\s*(['"])(?P<split>.{3,40}?)\1|(['"])(?P<looked_for>.{3,40}?)\3\s+in\s"""
)
# Write your thoughts between <think></think>
EXPLAINED = re.compile(r"<(?P<tag>[\w:|-]*(?:think|thought|reason)[\w:|-]*)>\s*</(?P=tag)>")
MAX_CANDIDATES = 8  # arbitrary


def probe_reply_format(probe: Probe) -> ReplyFormat:
    """Return how replies are written."""
    reasoning = _probe_reasoning(probe)
    whole = recognise_reply(probe, reasoning)
    if whole is not None:
        return whole
    return ReplyFormat(
        reasoning, recognise_calls(probe, reasoning), _probe_content(probe, reasoning)
    )


def is_opened(generation: str, reasoning: ReasoningFormat | None) -> bool:
    """Say whether a generation prompt ends inside of reasoning."""
    return reasoning is not None and generation.rstrip().endswith(reasoning.start)


def _probe_reasoning(probe: Probe) -> ReasoningFormat | None:
    """Return where reasoning stands, None if nothing shows that there is any."""
    markers = (
        _read_history(probe)
        or _read_generation(probe)
        or _read_source(probe)
        or _read_explained(probe)
    )
    if markers is None or not markers.end:
        return None
    return ReasoningFormat(markers.start, markers.end, _earlier_reasoning(probe))


def _probe_content(probe: Probe, reasoning: ReasoningFormat | None) -> Affix:
    """Return what stands around the text of a reply besides the frame of the message."""
    lead = _lead(probe)
    trailer = text_after(probe.history(user(), answer()), ANSWER)
    header = probe.generation(enable_thinking=False)
    if reasoning is not None and reasoning.start in header:
        header = header[: header.index(reasoning.start)]
    header = header.rstrip()
    if lead is None or trailer is None or not lead.startswith(header):
        return Affix()
    start = lead.removeprefix(header).strip()
    if reasoning is not None:
        start = start.removeprefix(reasoning.start).strip().removeprefix(reasoning.end).strip()
    end = "".join(split_pieces(trailer.strip())[: len(split_pieces(start))])
    # A text that is marked has an end of its own before the end of the message.
    if not start or not TAG.match(end) or not trailer.strip().removeprefix(end):
        return Affix()
    return Affix(start, end)


def _earlier_reasoning(probe: Probe) -> EarlierReasoning:
    """Return what becomes of reasoning that a client sends back."""
    later = probe.prompt(user(), answer(**REASONED), user(LATER_USER))
    called = probe.prompt(user(), calling(call(0), **REASONED), result(), tools=True)
    called_later = probe.prompt(
        user(), calling(call(0), **REASONED), result(), answer(), user(LATER_USER), tools=True
    )
    if later is None and called is None:
        return "unknown"
    shown = probe.history(user(), answer(**REASONED)) or ""
    if REASONING in (later or "") or (REASONING in (called_later or "") and REASONING not in shown):
        return "kept"
    if REASONING in (called or "") or REASONING in shown:
        return "dropped_before_last_user"
    return "dropped"


def _read_history(probe: Probe) -> Affix | None:
    shown = probe.history(user(), answer(**REASONED))
    before, gap = between(shown, USER, REASONING), between(shown, REASONING, ANSWER)
    lead = _lead(probe)
    if before is None or gap is None:
        called = probe.prompt(user(), calling(call(0), **REASONED), result(), tools=True)
        before, gap = between(called, USER, REASONING), between(called, REASONING, NAMES[0])
        bare = probe.prompt(user(), calling(call(0)), result(), tools=True)
        lead = between(bare, USER, NAMES[0])
    if before is None or gap is None:
        return None
    start = _read_start(probe, before, gap)
    end = gap.removesuffix(shared_end(gap, lead or "")).strip()
    if not end:  # empty reasoning is written too: the end has as many pieces as the start
        num_pieces = len(split_pieces(start or last_marker(before)))
        end = "".join(split_pieces(gap.strip())[:num_pieces]).strip()
    if not start:
        mirrored = _mirror(end)
        start = last_marker(before) if mirrored == end else mirrored
    return Affix(start, end)


def _read_start(probe: Probe, before: str, gap: str) -> str:
    """Return what no frame of a message explains of what stands before reasoning; or ""."""
    before = before.rstrip()
    for header in _headers(probe):
        start = before.removeprefix(header) if before.startswith(header) else ""
        if not start and header.startswith(before):
            further = header.removeprefix(before).strip()  # a history has less than a prompt,
            start = "" if further in gap else further  # unless this closes the reasoning
        if start.strip():
            return start.strip()
    return ""


def _mirror(end: str) -> str:
    """Return `<think>` for `</think>`; a text without a slash as it is."""
    return end.replace("/", "", 1)


def _headers(probe: Probe) -> Iterator[str]:
    """Yield what a template writes between a user message and a reply."""
    yield probe.generation().rstrip()
    earlier = between(probe.history(user(), answer(), user(LATER_USER)), USER, ANSWER)
    if earlier:
        yield earlier.rstrip()


def _lead(probe: Probe) -> str | None:
    return between(probe.history(user(), answer()), USER, ANSWER)


def _read_generation(probe: Probe) -> Affix | None:
    """Read the markers from how the generation prompt changes when reasoning is switched off."""
    on = probe.generation(enable_thinking=True).rstrip()
    off = probe.generation(enable_thinking=False).rstrip()
    if on == off:
        return None
    tags = [match[0] for match in TAG.finditer(off[len(shared_start(on, off)) :])]
    if off.startswith(on) and len(tags) == 1:
        return Affix(last_marker(on), tags[0])
    if len(tags) == 2:  # empty reasoning
        return Affix(tags[0], tags[1])
    return None


def _read_explained(probe: Probe) -> Affix | None:
    """Read the markers from an explanation that a prompt has where reasoning is asked for."""
    asked = probe.prompt(user(), thinking=True, enable_thinking=True) or ""
    if asked == probe.prompt(user(), thinking=False, enable_thinking=False):
        return None
    found = EXPLAINED.search(asked)
    return Affix(f"<{found['tag']}>", f"</{found['tag']}>") if found else None


def _read_source(probe: Probe) -> Affix | None:
    """Read the end from the source: a text up to which a template cuts contents."""
    found = (match["split"] or match["looked_for"] for match in CUTTING.finditer(probe.source))
    for end in list(dict.fromkeys(found))[:MAX_CANDIDATES]:
        cut = probe.prompt(user(), answer(REASONING + end + ANSWER), user(LATER_USER))
        if cut is not None and ANSWER in cut and REASONING not in cut:
            return Affix(_mirror(end), end)
    return None

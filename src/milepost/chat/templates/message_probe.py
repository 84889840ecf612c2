"""Learns what a template does with messages: their frames, and what it makes of odd orders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from milepost.chat.formats.probe_texts import (
    ANSWER,
    IDS,
    LATER_ANSWER,
    LATER_RESULT,
    LATER_USER,
    NAMES,
    RESULT,
    SYSTEM,
    USER,
    VALUES,
    Probe,
    answer,
    between,
    call,
    calling,
    result,
    system,
    text_after,
    user,
)
from milepost.chat.formats.reply_format import Affix, ReasoningFormat
from milepost.chat.formats.text_pieces import shared_start
from milepost.chat.templates.reply_probe import is_opened

# What a template does with a message that is not where it expects one.
Treatment = Literal["kept", "moved", "dropped", "refused"]
ToolsPlace = Literal["none", "start", "last_user"]  # last_user: it moves with each user message

# Variables that templates read to decide on reasoning, with values to try.
SWITCHES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("enable_thinking", (False,)),
    ("thinking", (False, True)),
    ("reasoning_effort", ("low", "high", "none")),
    ("thinking_budget", (0, 512)),
    ("reasoning", (False, True)),
)


@dataclass(frozen=True, slots=True)
class GenerationPrompts:
    """What a prompt ends with, by whether reasoning is wanted (`enable_thinking`)."""

    with_reasoning: str
    without_reasoning: str
    opens_reasoning: bool  # the first ends inside of reasoning
    opens_reasoning_anyway: bool  # the second does
    switches: tuple[str, ...]  # variables about reasoning that change the prompt


@dataclass(frozen=True, slots=True)
class MessageFrames:
    """What stands around the text of a message, by role; None where a template shows no text."""

    system: Affix | None
    user: Affix | None
    assistant: Affix | None
    tool: Affix | None  # the result of a tool; NAME and ID stand for those of its call


@dataclass(frozen=True, slots=True)
class ToolsShown:
    """What a template shows of tools, calls and results."""

    place: ToolsPlace  # where the tools are listed
    shows_calls: bool  # tool calls stay in histories
    groups_results: bool  # results that follow each other share one message
    shows_result_ids: bool


@dataclass(frozen=True, slots=True)
class Treatments:
    """What a template does with messages in an unusual order."""

    first_system: Treatment
    later_system: Treatment
    consecutive_users: Treatment
    consecutive_replies: Treatment


def probe_generation(probe: Probe, reasoning: ReasoningFormat | None) -> GenerationPrompts:
    """Return what prompts end with."""
    wanted = probe.generation(enable_thinking=True)
    unwanted = probe.generation(enable_thinking=False)
    ended = text_after(probe.history(user()), USER) or ""
    return GenerationPrompts(
        wanted.removeprefix(shared_start(wanted, ended)),
        unwanted.removeprefix(shared_start(unwanted, ended)),
        is_opened(wanted, reasoning),
        is_opened(unwanted, reasoning),
        tuple(name for name, values in SWITCHES if _changes_prompt(probe, name, values)),
    )


def probe_frames(probe: Probe) -> MessageFrames:
    """Return what stands around the texts of messages."""
    head = [system()] if treat_first_system(probe) == "kept" else []
    talk = [*head, user(), answer(), user(LATER_USER)]
    text = probe.history(*talk) or ""
    to_reply, to_user = between(text, USER, ANSWER), between(text, ANSWER, LATER_USER)
    if to_reply is None or to_user is None:
        return MessageFrames(None, None, None, _probe_result(probe, ""))
    user_end = _end_of(text_after(probe.history(*talk[:-2]), USER), to_reply)
    reply_end = _end_of(text_after(probe.history(*talk[:-1]), ANSWER), to_user)
    if not reply_end and to_user.startswith(user_end):  # gpt-oss: the last reply ends otherwise
        reply_end = user_end
    user_start = to_user[len(reply_end) :]
    in_system = None
    if head:
        to_first = between(text, SYSTEM, USER) or ""
        in_system = Affix(text.partition(SYSTEM)[0], to_first.removesuffix(user_start))
    return MessageFrames(
        in_system,
        Affix(user_start, user_end),
        Affix(to_reply[len(user_end) :], reply_end),
        _probe_result(probe, reply_end),
    )


def probe_tools(probe: Probe, result_frame: Affix | None) -> ToolsShown:
    """Return what is shown of tools, calls and results."""
    return ToolsShown(
        _find_tools(probe),
        shows_calls(probe),
        _groups_results(probe, result_frame),
        _shows_result_ids(probe),
    )


def probe_treatments(probe: Probe) -> Treatments:
    """Return what becomes of messages in an unusual order."""
    later = probe.prompt(user(), answer(), system(), user(LATER_USER))
    replies = probe.prompt(user(), answer(), answer(LATER_ANSWER), user(LATER_USER))
    return Treatments(
        treat_first_system(probe),
        _treat(later, SYSTEM, ANSWER, LATER_USER),
        treat_consecutive_users(probe),
        _treat(replies, ANSWER, USER, LATER_ANSWER),
    )


def shows_calls(probe: Probe) -> bool:
    """Say whether tool calls are written into histories."""
    text = probe.prompt(user(), calling(call(0)), result(), answer(), user(), tools=True)
    return text is not None and VALUES[0][0] in text


def shows_results(probe: Probe) -> bool:
    """Say whether results of tools are written into histories."""
    text = probe.prompt(user(), calling(call(0)), result(), tools=True)
    return text is not None and RESULT in text


def treat_first_system(probe: Probe) -> Treatment:
    """Return what becomes of a system message at the start."""
    text = probe.prompt(system(), user(), answer(), user(LATER_USER))
    return _treat(text, SYSTEM, before=USER)


def treat_consecutive_users(probe: Probe) -> Treatment:
    """Return what becomes of the first of two user messages in succession."""
    return _treat(probe.prompt(user(), user(LATER_USER)), USER, before=LATER_USER)


def _find_tools(probe: Probe) -> ToolsPlace:
    """Return where tools are listed."""
    text = probe.prompt(user(), answer(), user(LATER_USER), tools=True)
    if text is None or NAMES[0] not in text:
        return "none"
    return "last_user" if ANSWER in text and text.index(NAMES[0]) > text.index(ANSWER) else "start"


def _groups_results(probe: Probe, frame: Affix | None) -> bool:
    """Say whether two results that follow each other share one message."""
    both = calling(call(0), call(1))
    text = probe.prompt(user(), both, result(0), result(1), tools=True)
    gap = between(text, RESULT, LATER_RESULT)
    if frame is None or gap is None:
        return False
    return _without_numbers(_with_blanks(gap)) != _without_numbers(frame.end + frame.start)


def _shows_result_ids(probe: Probe) -> bool:
    """Say whether the result of a tool names the call that it answers."""
    text = probe.prompt(user(), calling(call(0)), result(), tools=True)
    shown = text is not None and RESULT in text and VALUES[0][1] in text
    return shown and text is not None and IDS[0] in text[text.rindex(VALUES[0][1]) :]


def _treat(text: str | None, marker: str, after: str = "", before: str = "") -> Treatment:
    if text is None:
        return "refused"
    if marker not in text:
        return "dropped"
    is_in_place = (
        text.rfind(after, 0, text.index(marker)) >= 0 and before in text.partition(marker)[2]
    )
    return "kept" if is_in_place else "moved"


def _changes_prompt(probe: Probe, name: str, values: tuple[object, ...]) -> bool:
    usual = probe.prompt(system(), user()) or probe.prompt(user())
    for value in values:
        variables: dict[str, Any] = {name: value}
        changed = probe.prompt(system(), user(), **variables)
        changed = changed or probe.prompt(user(), **variables)
        if changed is not None and changed != usual:
            return True
    return False


def _end_of(alone: str | None, gap: str | None) -> str:
    """Return how a message ends: what follows its text alone and before another one."""
    if alone is None or gap is None:
        return ""
    return shared_start(alone, gap)


def _probe_result(probe: Probe, reply_end: str) -> Affix | None:
    talk = [user(), calling(call(0)), result(), answer()]
    text = probe.history(*talk, tools=True)
    # The last that is shown before the result: of the call, if calls are shown at all.
    before = VALUES[0][1] if VALUES[0][1] in (text or "") else USER
    start, end = between(text, before, RESULT), between(text, RESULT, ANSWER)
    if start is None or end is None:
        return None
    of_call = _end_of(text_after(probe.history(*talk[:2], tools=True), before), start)
    of_result = _end_of(text_after(probe.history(*talk[:3], tools=True), RESULT), end)
    start = start[len(of_call) :].removeprefix(reply_end)
    return Affix(_with_blanks(start), _with_blanks(of_result))


def _with_blanks(text: str) -> str:
    for number in (0, 1):
        text = text.replace(NAMES[number], "NAME").replace(IDS[number], "ID")
    return text


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)  # Kimi counts results

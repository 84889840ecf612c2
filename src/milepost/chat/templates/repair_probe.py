"""Learns which messages a template refuses or loses, and what has to be done so that it does not.

Each repair has sample conversations that need it where a template does. The template is asked for
them with the repairs that are known so far; if a text is missing from one of the prompts, or there
is no prompt, the repair is tried, and kept if all texts are there then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from milepost.chat.conversation.conversation import Message, make_conversation
from milepost.chat.formats.probe_texts import (
    LATER_ANSWER,
    LATER_USER,
    NAMES,
    TOOLS,
    VALUES,
    Probe,
    answer,
    call,
    calling,
    result,
    system,
    user,
)
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.templates.message_repairs import NOTHING, MessageRepairs, repair_messages

LATER_SYSTEM, LAST_USER = "mpnotice", "mpthird"
FILLERS = ("", "OK.")  # replies that nobody gave, the first that a template takes

Talk = Sequence[Message]


def _without_id(message: Message) -> Message:
    kept = {key: each for key, each in message.items() if key not in ("tool_call_id", "name")}
    if "tool_calls" in message:
        kept["tool_calls"] = [
            {key: each for key, each in item.items() if key != "id"}
            for item in message["tool_calls"]
        ]
    return kept


NOTICE = system(LATER_SYSTEM)
ONE, TWO = calling(call(0)), calling(call(0), call(1))
WORDS = calling(call(0), text=LATER_ANSWER)
THOUGHTS = calling(call(0), text=LATER_ANSWER, reasoning_content="mpthought")
LISTED = calling(call(0, '["mpvala"]'))  # no object

# Repairs, each with the talks that need it, in the order in which they are decided.
OF_MESSAGES: tuple[tuple[dict[str, Any], tuple[Talk, ...]], ...] = (
    (
        {"first_system_to_user": True},
        (
            [system(), user()],
            [system(), user(), answer()],
            [system(), user(), answer(), user(LATER_USER)],
        ),
    ),
    ({"joins_systems": True}, ([system(), NOTICE, user()],)),
    (
        {"joins_users": True},
        ([user(), user(LATER_USER)], [user(), user(LATER_USER), answer(), user(LAST_USER)]),
    ),
    ({"drops_empty_replies": True}, ([user(), answer(""), user(LATER_USER)],)),
    ({"joins_replies": True}, ([user(), answer(), answer(LATER_ANSWER), user(LATER_USER)],)),
    (
        {"later_system_to_user": True},
        (
            [system(), user(), answer(), NOTICE, user(LATER_USER)],
            [system(), user(), NOTICE, answer(), user(LATER_USER)],
            [user(), answer(), NOTICE, user(LATER_USER)],
            [user(), answer(), user(LATER_USER), NOTICE],
        ),
    ),
    ({"leads_with_user": True}, ([answer(), user()], [system(), answer()], [system()])),
)
OF_TOOLS: tuple[tuple[dict[str, Any], tuple[Talk, ...]], ...] = (
    (
        {"fills_ids": True},
        (
            [user(), _without_id(ONE), _without_id(result()), answer(), user(LATER_USER)],
            [user(), ONE, _without_id(result()), answer(), user(LATER_USER)],
        ),
    ),
    ({"wraps_arguments": True}, ([user(), LISTED, result(), answer(), user(LATER_USER)],)),
    ({"joins_calls": True}, ([user(), ONE, calling(call(1)), result(0), result(1), answer()],)),
    (
        {"splits_calls": True},
        (
            [user(), TWO, result(0), result(1)],
            [user(), TWO, result(0), result(1), answer(), user(LATER_USER)],
        ),
    ),
    ({"orphans_to_user": True}, ([user(), result(), answer()], [result(), user()])),
)
AFTER_RESULTS: tuple[Talk, ...] = (
    [user(), ONE, result(), user(LATER_USER), answer()],
    [user(), ONE, user(LATER_USER), answer()],
)
BESIDE_CALLS: tuple[Talk, ...] = ([user(), WORDS, result()], [user(), THOUGHTS, result()])
BESIDE_EARLIER_CALLS: tuple[Talk, ...] = (
    [user(), WORDS, result(), answer(), user(LATER_USER)],
    [user(), THOUGHTS, result(), answer(), user(LATER_USER)],
)


class RepairProbe:
    """Learns the repairs of one template."""

    def __init__(self, probe: Probe, reply: ReplyFormat, *, has_tools: bool) -> None:
        self._probe = probe
        self._reply = reply
        self._form = reply.tool_calls
        self._has_tools = has_tools
        self._repairs = NOTHING

    def learn(self) -> MessageRepairs:
        """Return what has to be done; nothing where a template takes no conversation at all."""
        for change, talks in OF_MESSAGES:
            self._choose(talks, [change])
        if not self._has_tools:
            return self._repairs
        for change, talks in OF_TOOLS[:-1]:
            self._choose(talks, [change])
        self._choose(AFTER_RESULTS, [{"before_user": filler} for filler in FILLERS])
        self._choose(self._talks_with_words(), [{"words": place} for place in self._places()])
        for change, talks in OF_TOOLS[-1:]:
            self._choose(talks, [change])
        return self._repairs

    def _talks_with_words(self) -> tuple[Talk, ...]:
        if self._form is not None and self._form.body.reads_whole_reply:
            return BESIDE_CALLS  # gpt-oss: they are reasoning, which goes with the turn
        return (*BESIDE_CALLS, *BESIDE_EARLIER_CALLS)

    def _places(self) -> list[str]:
        form = self._form
        is_text = form is not None and not form.body.reads_whole_reply and form.start_marker
        if not is_text:
            return ["reasoning", "apart"]
        if self._reply.content.start:  # calls would stand inside of it
            return ["reasoning", "apart", "with_calls_and_results"]
        return ["with_calls", "reasoning", "apart", "with_calls_and_results"]

    def _choose(self, talks: Sequence[Talk], changes: Sequence[dict[str, Any]]) -> None:
        """Make the first change with which no text is missing, if one is without any."""
        missing = self._count_missing(talks, self._repairs)
        best = self._repairs
        for change in changes:
            if not missing:
                break
            repairs = replace(self._repairs, **change)
            count = self._count_missing(talks, repairs)
            if count < missing:
                best, missing = repairs, count
        self._repairs = best

    def _count_missing(self, talks: Sequence[Talk], repairs: MessageRepairs) -> int:
        return sum(not self._shows_all(talk, repairs) for talk in talks)

    def _shows_all(self, talk: Talk, repairs: MessageRepairs) -> bool:
        speaks_of_tools = any("tool_calls" in each or each["role"] == "tool" for each in talk)
        conversation = make_conversation(talk, TOOLS if speaks_of_tools else None)
        repaired = repair_messages(conversation, repairs, self._form)
        prompt = self._probe.ask(repaired, add_generation_prompt=True)
        return prompt is not None and all(text in prompt for text in _texts_of(talk))


def _texts_of(talk: Talk) -> list[str]:
    """Return what must be in a prompt: texts of messages, and a value of each call."""
    calls = [each for message in talk for each in message.get("tool_calls", ())]
    names = [each["function"]["name"] for each in calls]
    return [
        *(message["content"] for message in talk),
        *(VALUES[NAMES.index(name)][0] for name in names),
    ]

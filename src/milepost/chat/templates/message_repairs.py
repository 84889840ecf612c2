"""Rearranges messages for templates that refuse or lose them where they stand.

A client sends its history again and again: what a template does not take must not lock it out, and
no text may be lost on the way. `MessageRepairs` says what one template needs (found by
`repair_probe`).

    system   s                                  user   s
    user     a             alternating roles,          a
    user     b             no system role:             b
    reply    two calls     ────────────>        reply  first call
    result   1                                  result 1
    result   2                                  reply  second call
                                                result 2

Everything depends on a message and its neighbours only, so that a history stays as it is when it
grows. Called by `ChatTemplate.render` after `tool_fallback`, whose texts are messages like others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.formats.reply_format import Affix, ToolCallFormat
from milepost.chat.templates.message_forms import short_id
from milepost.chat.templates.tool_fallback import RESULT, written_call
from milepost.kinds import SYSTEM_ROLES, TOOL_ROLES

LATER_SYSTEM = Affix("<system>\n", "\n</system>")
GAP = "\n\n"  # between texts that become one

# What becomes of the text of a reply that has calls too: it is left to the template; the calls are
# written into it, and their results into messages of the user; it is reasoning; a reply of its own.
WordsPlace = Literal["kept", "with_calls", "with_calls_and_results", "reasoning", "apart"]


@dataclass(frozen=True, slots=True)
class MessageRepairs:
    """What has to be done for a template that refuses or loses messages as they are."""

    first_system_to_user: bool = False  # it becomes a part of the first user message
    joins_systems: bool = False  # several at the start become one
    later_system_to_user: bool = False  # marked, where it stands
    drops_empty_replies: bool = False  # without text, reasoning and calls
    leads_with_user: bool = False  # an empty user message comes first where there is none
    joins_users: bool = False
    joins_replies: bool = False
    joins_calls: bool = False  # replies with calls that follow each other
    # The reply between calls or results, and the user or reply that follows; None: none is needed.
    before_user: str | None = None
    words: WordsPlace = "kept"
    splits_calls: bool = False  # one call a reply, each followed by its result
    fills_ids: bool = False  # of calls and results that have none
    orphans_to_user: bool = False  # results that no call precedes
    wraps_arguments: bool = False  # that are no objects


NOTHING = MessageRepairs()
# For what a template refuses even so; tools are texts by then.
STRICTEST = MessageRepairs(
    first_system_to_user=True,
    joins_systems=True,
    later_system_to_user=True,
    leads_with_user=True,
    joins_users=True,
    joins_replies=True,
    drops_empty_replies=True,
    orphans_to_user=True,
)


@dataclass(slots=True)
class _Turn:
    """A message, with the JSON texts of the arguments of its calls."""

    message: Message
    argument_texts: list[str] = field(default_factory=list)

    @property
    def role(self) -> str:
        role: str = self.message["role"]
        return "tool" if role in TOOL_ROLES else "system" if role in SYSTEM_ROLES else role

    @property
    def calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = self.message.get("tool_calls", [])
        return calls

    @property
    def is_empty_reply(self) -> bool:
        texts = (self.message.get("reasoning_content", ""), self.message["content"])
        return self.role == "assistant" and not self.calls and not "".join(texts).strip()


def repair_messages(
    conversation: Conversation, repairs: MessageRepairs, form: ToolCallFormat | None = None
) -> Conversation:
    """Return the conversation as a template takes it; the same object where nothing is changed.

    `form` is how calls are written into texts, where they have to be.
    """
    turns = [
        _Turn(message, [conversation.argument_texts[i, j] for j in range(_num_calls(message))])
        for i, message in enumerate(conversation.messages)
    ]
    repaired = list(_repair(turns, repairs, form))
    if [turn.message for turn in repaired] == conversation.messages:
        return conversation
    return replace(
        conversation,
        messages=[turn.message for turn in repaired],
        argument_texts={
            (i, j): text
            for i, turn in enumerate(repaired)
            for j, text in enumerate(turn.argument_texts)
        },
    )


def _repair(
    turns: list[_Turn], repairs: MessageRepairs, form: ToolCallFormat | None
) -> Iterable[_Turn]:
    if repairs.fills_ids:
        turns = list(_fill_ids(turns))
    if repairs.wraps_arguments:
        turns = [_wrap_arguments(turn) for turn in turns]
    if repairs.orphans_to_user:
        turns = list(_orphans_to_user(turns))
    if repairs.drops_empty_replies:
        turns = [turn for turn in turns if not turn.is_empty_reply]
    turns = list(_place_systems(turns, repairs))
    if repairs.words != "kept":
        turns = list(_place_words(turns, repairs.words, form))
    if repairs.joins_calls or repairs.joins_replies or repairs.joins_users:
        turns = list(_join(turns, repairs))
    if repairs.splits_calls:
        turns = list(_split_calls(turns))
    if repairs.leads_with_user:
        turns = list(_lead_with_user(turns))
    if repairs.before_user is not None:
        turns = list(_separate(turns, repairs.before_user))
    return turns


# --- system messages -----------------------------------------------------------------------------


def _place_systems(turns: list[_Turn], repairs: MessageRepairs) -> Iterator[_Turn]:
    num_head = next((i for i, each in enumerate(turns) if each.role != "system"), len(turns))
    head, rest = turns[:num_head], turns[num_head:]
    if head and (repairs.joins_systems or repairs.first_system_to_user):
        text = GAP.join(turn.message["content"] for turn in head)
        head = [_Turn({**head[0].message, "content": text})]
    if head and repairs.first_system_to_user:
        if rest and rest[0].role == "user":
            text = _join_texts(head[0].message["content"], rest[0].message["content"])
            rest = [_Turn({**rest[0].message, "content": text}), *rest[1:]]
        else:
            rest = [_user_turn(head[0].message["content"]), *rest]
        head = []
    yield from head
    for turn in rest:
        if turn.role == "system" and repairs.later_system_to_user:
            text = f"{LATER_SYSTEM.start}{turn.message['content']}{LATER_SYSTEM.end}"
            yield _user_turn(text)
        else:
            yield turn


# --- calls and results ---------------------------------------------------------------------------


def _fill_ids(turns: list[_Turn]) -> Iterator[_Turn]:
    """Give calls an id that depends on them alone, and results the one of their call."""
    waiting: list[tuple[str, str]] = []  # ids and names of calls without a result
    for turn in turns:
        if turn.calls:
            calls = [_with_id(call, j) for j, call in enumerate(turn.calls)]
            waiting = [(call["id"], call["function"]["name"]) for call in calls]
            yield _Turn({**turn.message, "tool_calls": calls}, turn.argument_texts)
        elif turn.role == "tool":
            given = turn.message.get("tool_call_id")
            named = [each for each in waiting if each[0] == given] or waiting[:1]
            call_id, name = named[0] if named else (given or short_id("none"), "")
            waiting = [each for each in waiting if each[0] != call_id]
            filled = {"tool_call_id": given or call_id, "name": turn.message.get("name", name)}
            yield _Turn({**turn.message, **filled})
        else:
            yield turn


def _with_id(call: dict[str, Any], number: int) -> dict[str, Any]:
    if call.get("id"):
        return call
    what = json.dumps([number, call["function"]], sort_keys=True)
    return {**call, "id": short_id(hashlib.sha256(what.encode()).hexdigest())}


def _wrap_arguments(turn: _Turn) -> _Turn:
    if all(isinstance(call["function"]["arguments"], dict) for call in turn.calls):
        return turn
    written = [
        written_call(call, text) for call, text in zip(turn.calls, turn.argument_texts, strict=True)
    ]
    calls = [
        {**call, "function": {**call["function"], "arguments": dict(each.arguments)}}
        for call, each in zip(turn.calls, written, strict=True)
    ]
    texts = [each.arguments_text for each in written]
    return _Turn({**turn.message, "tool_calls": calls}, texts)


def _orphans_to_user(turns: list[_Turn]) -> Iterator[_Turn]:
    """Make texts of the user of results that stand where no call waits for one."""
    num_waiting = 0
    for turn in turns:
        if turn.role == "tool" and num_waiting == 0:
            yield _user_turn(_result_text(turn))
            continue
        num_waiting = num_waiting - 1 if turn.role == "tool" else len(turn.calls)
        yield turn


def _place_words(
    turns: list[_Turn], place: WordsPlace, form: ToolCallFormat | None
) -> Iterator[_Turn]:
    are_texts = False  # the results that follow
    for turn in turns:
        words = turn.message["content"]
        if turn.role == "tool" and are_texts:
            yield _user_turn(_result_text(turn))
            continue
        are_texts = False
        if not turn.calls or not words.strip():
            yield turn
        elif place == "reasoning":
            reasoning = _join_texts(turn.message.get("reasoning_content", ""), words)
            message = {**turn.message, "content": "", "reasoning_content": reasoning}
            yield _Turn(message, turn.argument_texts)
        elif place == "apart" or form is None:
            apart = {key: value for key, value in turn.message.items() if key != "tool_calls"}
            yield _Turn(apart)
            rest = {key: each for key, each in turn.message.items() if key != "reasoning_content"}
            yield _Turn({**rest, "content": ""}, turn.argument_texts)
        else:
            are_texts = place == "with_calls_and_results"
            calls = map(written_call, turn.calls, turn.argument_texts)
            message = {key: value for key, value in turn.message.items() if key != "tool_calls"}
            yield _Turn({**message, "content": f"{words}\n{form.write_calls(list(calls))}"})


def _split_calls(turns: list[_Turn]) -> Iterator[_Turn]:
    """Give each call a reply of its own, before its result, in the order of the results."""
    waiting: list[_Turn] = []
    for turn in turns:
        if turn.role == "tool":
            if waiting:
                yield waiting.pop(_find_call(waiting, turn))
            yield turn
            continue
        yield from waiting
        waiting = []
        if len(turn.calls) > 1:
            waiting = [
                _Turn({**turn.message, "tool_calls": [call]}, [text])
                for call, text in zip(turn.calls, turn.argument_texts, strict=True)
            ]
            _keep_words_once(waiting)
        else:
            yield turn
    yield from waiting


def _find_call(waiting: list[_Turn], result: _Turn) -> int:
    call_id = result.message.get("tool_call_id")
    ids = [turn.calls[0].get("id") for turn in waiting]
    return ids.index(call_id) if call_id in ids else 0


# --- turns ---------------------------------------------------------------------------------------


def _join(turns: list[_Turn], repairs: MessageRepairs) -> Iterator[_Turn]:
    last: _Turn | None = None
    for turn in turns:
        if last is not None and _are_joined(last, turn, repairs):
            last = _joined(last, turn)
            continue
        if last is not None:
            yield last
        last = turn
    if last is not None:
        yield last


def _are_joined(one: _Turn, other: _Turn, repairs: MessageRepairs) -> bool:
    if one.role != other.role:
        return False
    if one.role == "user":
        return repairs.joins_users
    if one.role != "assistant":
        return False
    if one.calls:
        return repairs.joins_calls and bool(other.calls)
    return repairs.joins_replies and (not other.calls or repairs.words == "kept")


def _joined(one: _Turn, other: _Turn) -> _Turn:
    message = {**one.message, **other.message}
    for key in ("reasoning_content", "content"):
        if key in message:
            message[key] = _join_texts(one.message.get(key, ""), other.message.get(key, ""))
    if one.calls:
        message["tool_calls"] = [*one.calls, *other.calls]
    return _Turn(message, [*one.argument_texts, *other.argument_texts])


def _lead_with_user(turns: list[_Turn]) -> Iterator[_Turn]:
    is_led = False
    for turn in turns:
        if not is_led and turn.role != "system":
            if turn.role != "user":
                yield _user_turn("")
            is_led = True
        yield turn
    if not is_led:
        yield _user_turn("")


def _separate(turns: list[_Turn], reply: str) -> Iterator[_Turn]:
    last: _Turn | None = None
    for turn in turns:
        if turn.role == "user" and last is not None and (last.role == "tool" or last.calls):
            yield _Turn({"role": "assistant", "content": reply})
        yield turn
        last = turn


def _keep_words_once(turns: list[_Turn]) -> None:
    for turn in turns[1:]:
        turn.message = {**turn.message, "content": ""}
        turn.message.pop("reasoning_content", None)


def _user_turn(text: str) -> _Turn:
    return _Turn({"role": "user", "content": text})


def _result_text(turn: _Turn) -> str:
    return f"{RESULT.start}{turn.message['content']}{RESULT.end}"


def _join_texts(one: str, other: str) -> str:
    return f"{one}{GAP}{other}" if one and other else one or other


def _num_calls(message: Message) -> int:
    return len(message.get("tool_calls", ()))

"""From the text of a chat reply to what OpenAI's dialect says of it: messages and their deltas."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import UNSET

from milepost.api.openai.schemas import (
    CallDelta,
    CallShape,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    FunctionShape,
)
from milepost.api.shapes import OPENAI_FINISH_REASONS
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.replies.reply_plan import ReplyPlan
from milepost.protocol.messages import FinishReason

logger = logging.getLogger(__name__)

TRUNCATED: tuple[FinishReason, ...] = ("limit", "context_full", "cancelled")


class ChatReply:
    """Reads one choice; what is not well formed is noted in the log under the answer's id."""

    def __init__(self, plan: ReplyPlan, answer_id: str) -> None:
        self._parser = plan.make_parser()
        self._answer_id = answer_id
        self._has_calls = False

    def read(self, text: str) -> list[ReplyEvent]:
        """Take more text; return what it makes certain."""
        return self._note(self._parser.feed(text))

    def finish(self, reason: FinishReason) -> list[ReplyEvent]:
        """Return the last events."""
        return self._note(self._parser.finish(is_truncated=reason in TRUNCATED))

    def finish_reason(self, reason: FinishReason) -> str:
        """Return OpenAI's word for how the choice ended; only after `finish`."""
        word = OPENAI_FINISH_REASONS[reason]
        return "tool_calls" if word == "stop" and self._has_calls else word

    def _note(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        for event in events:
            if isinstance(event, ParseWarning):
                logger.warning("%s: %s", self._answer_id, event.message)
            elif isinstance(event, CallStart):
                self._has_calls = True
        return events


def make_message(events: Iterable[ReplyEvent]) -> ChatMessage:
    """Return the message that all events of a reply make; content is null beside calls only."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, ContentText):
            content.append(event.text)
        elif isinstance(event, ReasoningText):
            reasoning.append(event.text)
        elif isinstance(event, CallStart):
            calls.append(event)
            arguments.append([])
        elif isinstance(event, CallArguments):
            arguments[event.index].append(event.text)
    shapes = tuple(
        CallShape(id=call.call_id, function=FunctionShape(name=call.name, arguments="".join(texts)))
        for call, texts in zip(calls, arguments, strict=True)
    )
    return ChatMessage(
        content="".join(content) if content or not calls else None,
        reasoning_content="".join(reasoning) if reasoning else UNSET,
        tool_calls=shapes or UNSET,
    )


def make_deltas(events: Iterable[ReplyEvent]) -> Iterator[ChatDelta]:
    """Yield what the events add to a message, one delta for each run of a kind."""
    for kind, run in groupby(events, _kind):
        if kind == "content":
            yield ChatDelta(content=_text(run))
        elif kind == "reasoning":
            yield ChatDelta(reasoning_content=_text(run))
        elif kind == "calls" and (calls := tuple(_call_deltas(run))):
            yield ChatDelta(tool_calls=calls)


def _kind(event: ReplyEvent) -> str:
    if isinstance(event, ContentText):
        return "content"
    if isinstance(event, ReasoningText):
        return "reasoning"
    return "" if isinstance(event, ParseWarning) else "calls"


def _text(events: Iterable[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentText | ReasoningText))


def _call_deltas(events: Iterable[ReplyEvent]) -> Iterator[CallDelta]:
    """Yield one delta for each call; the first of a call has its id and name.

    The end of a call, which deltas do not tell, stands between the events of two calls.
    """
    for index, run in groupby(events, _call_index):
        start: CallStart | None = None
        pieces: list[str] = []
        for event in run:
            if isinstance(event, CallStart):
                start = event
            elif isinstance(event, CallArguments):
                pieces.append(event.text)
        if start is not None or pieces:
            yield _call_delta(index, start, "".join(pieces))


def _call_index(event: ReplyEvent) -> int:
    assert isinstance(event, CallStart | CallArguments | CallEnd)
    return event.index


def _call_delta(index: int, start: CallStart | None, arguments: str) -> CallDelta:
    if start is None:
        return CallDelta(index=index, function=FunctionDelta(arguments=arguments))
    return CallDelta(
        index=index,
        id=start.call_id,
        type="function",
        function=FunctionDelta(name=start.name, arguments=arguments),
    )

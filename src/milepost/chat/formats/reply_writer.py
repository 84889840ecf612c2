"""Makes events of what `stream_parser` reads, and keeps the rules of white space.

What separates reasoning, text and calls in a template belongs to neither of them:

    reasoning   without white space at its ends
    content     without line breaks after reasoning, without white space before a call; what comes
                after a call keeps the white space before it only where other text stood already
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import replace

from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.formats.text_source import Malformed, TextSource

QUOTES = ("`", "'", '"')
BLOCK_GAP = "\n\n"  # between two blocks of reasoning
MAX_NAME_CHARS = 256  # of a tool; arbitrary, OpenAI allows 64
NAME = re.compile(r"[$@:/.+-]*\w[\w$@:/.+-]*")  # of a tool that was not given


def make_call_id() -> str:
    """Return a new id for a tool call that the model gave none."""
    return f"call_{secrets.token_hex(12)}"


class ReplyWriter:
    """Collects the events of one reply.

    While a call is open, nothing else may be written; the text of a call that has begun is not
    kept any more.
    """

    def __init__(
        self,
        source: TextSource,
        tool_names: Collection[str],
        make_id: Callable[[], str] = make_call_id,
    ) -> None:
        self._source = source
        self._tool_names = tool_names
        self._make_id = make_id
        self._events: list[ReplyEvent] = []
        self._space = ""  # of the content, not written yet
        self._stripped = ""  # characters that content must not begin with
        self._has_content = False
        self._reasoning_space = ""
        self._reasoning_begins = True
        self._has_reasoning = False
        self.num_calls = 0
        self.is_call_open = False
        self.needs_known_name = False  # a call of a tool that was not given is none
        self._before_trial: ReplyWriter | None = None
        self._last_char = ""  # of the content

    def drain(self) -> list[ReplyEvent]:
        """Return the events since the last time, without those of a trial."""
        writer = self._before_trial or self
        events, writer._events = writer._events, []
        return events

    @property
    def is_on_trial(self) -> bool:
        """Whether what is written may yet be undone."""
        return self._before_trial is not None

    @property
    def is_quoting(self) -> bool:
        """Whether the content ends with a quotation mark."""
        return not self._space and self._last_char in QUOTES

    def begin_trial(self) -> None:
        """Keep the events from here on back until it is known whether they are right."""
        self._before_trial = copy.copy(self)
        self._events = []

    def keep_trial(self) -> None:
        """The events are right."""
        if self._before_trial is not None:
            self._events = [*self._before_trial._events, *self._events]
            self._before_trial = None

    def undo_trial(self) -> None:
        """Forget the events, and all that went with them."""
        if self._before_trial is not None:
            self.__dict__.update(self._before_trial.__dict__)

    def content(self, text: str) -> None:
        """Write text of the reply."""
        text = self._space + text
        if not self._has_content:
            text = text.lstrip(self._stripped)
        # Where no call can follow, white space need not wait for what it stands before.
        body = text.rstrip()
        if not self._tool_names and (body or self._has_content):
            body = text
        self._space = text[len(body) :]
        if body:
            self._has_content = True
            self._last_char = body[-1]
            self._add(ContentText(body))

    def reasoning(self, text: str) -> None:
        """Write reasoning."""
        text = self._reasoning_space + text
        if self._reasoning_begins:
            text = text.lstrip()
        body = text.rstrip()
        self._reasoning_space = text[len(body) :]
        if body:
            gap = BLOCK_GAP if self._reasoning_begins and self._has_reasoning else ""
            self._reasoning_begins = False
            self._has_reasoning = True
            self._add(ReasoningText(gap + body))

    def end_reasoning(self) -> None:
        """A block of reasoning has ended."""
        self._reasoning_space = ""
        self._reasoning_begins = True
        self._stripped += "\r\n"

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; raises Malformed where there can be none of that name."""
        is_known = name in self._tool_names
        if not is_known and (len(name) > MAX_NAME_CHARS or not NAME.fullmatch(name)):
            raise Malformed("the name of the tool is missing")
        if self.needs_known_name and not is_known:
            raise Malformed("there is no such tool")
        assert not self.is_call_open, "calls do not nest"
        self._space = self._reasoning_space = ""
        self._reasoning_begins = True
        self._source.unmark()
        self.is_call_open = True
        self._events.append(CallStart(self.num_calls, call_id or self._make_id(), name))

    def check_known(self, name: str) -> None:
        """Raise Malformed if no tool of that name was given."""
        if name not in self._tool_names:
            raise Malformed("there is no such tool")

    def arguments(self, text: str) -> None:
        """Write JSON text of the open call's arguments."""
        if text:
            self._add(CallArguments(self.num_calls, text))

    def end_call(self) -> None:
        """End the open call, whose arguments are complete."""
        self._events.append(CallEnd(self.num_calls))
        self.close_call()
        self._source.mark()

    def close_call(self) -> None:
        """Leave the open call as it is."""
        self.is_call_open = False
        self.num_calls += 1
        self._stripped = " \t\r\n"

    def abandon_call(self, problem: Malformed) -> None:
        """Note that what looked like a call is none, or has broken off."""
        self.warn(f"a tool call is not well formed: {problem}")
        if self.is_call_open:
            self.close_call()

    def warn(self, message: str) -> None:
        """Note what was wrong."""
        self._events.append(ParseWarning(message))

    def flush(self) -> None:
        """Write the white space that was held back at the end of the text."""
        if self._space and (self._has_content or not self._stripped) and not self.num_calls:
            self._add(ContentText(self._space))
        self._space = ""

    def _add(self, event: ContentText | ReasoningText | CallArguments) -> None:
        """Add an event, to the last one where that is of its kind."""
        last = self._events[-1] if self._events else None
        if last is not None and type(last) is type(event):
            self._events[-1] = replace(event, text=last.text + event.text)
        else:
            self._events.append(event)

"""Makes a trace of requests as they come: every message is kept once, whoever sends it again.

Pure. `recorder` feeds it with what passes through the server, and writes the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from milepost.traces.edits import slice_of, splice_in
from milepost.traces.trace import MAIN_THREAD, Message, Tool, Trace, TraceLine

# A recorder sees that a client gave up during a prefill, but not how far that was.
UNKNOWN_FRACTION = 0.5
KINDS = {"user": "user_turn", "tool": "tool_step"}  # by the role of the last message


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request with what was answered."""

    id: int
    t: float  # seconds since the start of the recording
    took_s: float
    messages: Sequence[Message]
    tools: Sequence[Tool]
    reply: Message
    was_abandoned: bool = False  # the client left before the end
    has_begun: bool = True  # the answer had: the prefill was over
    finish_reason: str = ""
    comes_after_restart: bool = False


class _Store:
    """Values, each once, in the order in which they came."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = []
        self._places: dict[bytes, int] = {}
        for value in values:
            self.add(value)

    def add(self, value: Any) -> int:
        """Return the index of a value, which is added if it is new."""
        key = msgspec.json.encode(value, order="sorted")
        place = self._places.setdefault(key, len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


@dataclass(slots=True)
class Recording:
    """A trace that grows. The only thread of its trace holds all messages in any order."""

    trace: Trace
    next_id: int = 0
    _messages: _Store = field(init=False)
    _tools: _Store = field(init=False)
    _sessions: dict[tuple[int, ...], str] = field(default_factory=dict)
    _lines: list[TraceLine] = field(init=False)

    def __post_init__(self) -> None:
        self._messages = _Store(self.trace.threads.get(MAIN_THREAD, ()))
        self._tools = _Store(self.trace.tools)
        self._lines = [_with_explicit_tools(line, self.trace) for line in self.trace.lines]
        self.next_id = max((line.id for line in self._lines), default=-1) + 1
        for request in self.trace.requests():
            places = [self._messages.add(message) for message in request.messages]
            self._sessions.setdefault(_session_key(request.messages, places), request.session)

    def take_id(self) -> int:
        """Return the id of a request that has just come."""
        self.next_id += 1
        return self.next_id - 1

    def add(self, request: RecordedRequest) -> None:
        """Add a request that is over."""
        places = [self._messages.add(message) for message in request.messages]
        key = _session_key(request.messages, places)
        upto, ranges = _split_ranges(places)
        items = [slice_of(MAIN_THREAD, start, end) for start, end in ranges]
        self._lines.append(
            TraceLine(
                id=request.id,
                session=self._sessions.setdefault(key, f"s{len(self._sessions) + 1}"),
                kind=KINDS.get(str(request.messages[-1].get("role")), "other"),
                t=round(request.t, 3),
                upto=upto,
                edits=(splice_in(upto, items),) if items else (),
                tools=tuple(self._tools.add(tool) for tool in request.tools),
                reply=self._messages.add(request.reply),
                markers=_markers_of(request),
            )
        )

    def to_trace(self) -> Trace:
        """Return the trace as it is now."""
        everything = tuple(range(len(self._tools.values)))
        return replace(
            self.trace,
            tools=list(self._tools.values),
            threads={MAIN_THREAD: list(self._messages.values)},
            lines=tuple(
                _with_short_tools(line, everything)
                for line in sorted(self._lines, key=lambda line: line.id)
            ),
        )


def _session_key(messages: Sequence[Message], places: Sequence[int]) -> tuple[int, ...]:
    """Return what tells sessions apart: all up to the first message of the user."""
    for index, message in enumerate(messages):
        if message.get("role") == "user":
            return tuple(places[: index + 1])
    return tuple(places)


def _split_ranges(places: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Return how many places from 0 on come first, and the runs of neighbours after them."""
    ranges: list[tuple[int, int]] = []
    for place in places:
        if ranges and ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], place + 1)
        else:
            ranges.append((place, place + 1))
    if ranges and ranges[0][0] == 0:
        return ranges[0][1], ranges[1:]
    return 0, ranges


def _markers_of(request: RecordedRequest) -> dict[str, Any]:
    markers: dict[str, Any] = {"took": round(request.took_s, 3)}
    if request.comes_after_restart:
        markers["restart_before"] = True
    if request.was_abandoned:
        markers["stop"] = "aborted"
        if not request.has_begun:
            markers["cancel_after_fraction"] = UNKNOWN_FRACTION
    elif request.finish_reason == "length":
        markers["stop"] = "length"
    if any(_has_media(message) for message in request.messages):
        markers["needs"] = "images"
    return markers


def _has_media(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") not in (None, "text") for part in content
    )


def _with_explicit_tools(line: TraceLine, trace: Trace) -> TraceLine:
    if not isinstance(line.tools, bool):
        return line
    return replace(line, tools=tuple(range(len(trace.tools))) if line.tools else ())


def _with_short_tools(line: TraceLine, everything: tuple[int, ...]) -> TraceLine:
    if not line.tools:
        return replace(line, tools=False)
    return replace(line, tools=True) if line.tools == everything else line

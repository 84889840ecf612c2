"""Conversations that share their history, and the trace they become.

A conversation is a list of slices of threads: those that it took over from others, and its own.
Every message is thereby stored once, however many branches repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.traces.edits import slice_of, splice_in
from milepost.traces.trace import Edit, Message, Tool, Trace, TraceLine


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages `[start, end)` of a thread."""

    thread: str
    start: int
    end: int


@dataclass(slots=True)
class TraceBuilder:
    """Collects the messages and requests of a trace, in order of sending."""

    tools: list[Tool]
    threads: dict[str, list[Message]] = field(default_factory=dict)
    lines: list[TraceLine] = field(default_factory=list)
    now_s: float = 0.0  # since the start of the trace

    def build(self, name: str, started: str, params: Mapping[str, Any]) -> Trace:
        """Return the trace of all that was asked so far."""
        return Trace(
            name=name,
            variant=name,
            started=started,
            params=params,
            tools=self.tools,
            threads=self.threads,
            lines=self.lines,
        )

    def open_thread(self, name: str) -> str:
        """Make an empty thread; its name gets a number where it is taken."""
        number = sum(known.split("~")[0] == name for known in self.threads)
        unique = f"{name}~{number}" if number else name
        self.threads[unique] = []
        return unique


@dataclass(slots=True)
class Conversation:
    """What one client has on its side; the next request sends all of it."""

    builder: TraceBuilder
    session: str
    taken: tuple[Slice, ...] = ()  # from other threads, in front of its own
    has_tools: bool = True
    strips_reasoning: bool = False  # of all that is older than the last user message
    reminder: str = ""  # appended to the last user message only
    own: str = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.builder.open_thread(self.session)

    @property
    def messages(self) -> list[Message]:
        """The messages as they were said, without what the client does to them on sending."""
        threads = self.builder.threads
        return [
            message
            for part in self._slices()
            for message in threads[part.thread][part.start : part.end]
        ]

    def say(self, message: Message) -> None:
        """Add a message."""
        self.builder.threads[self.own].append(message)

    def ask(self, kind: str, reply: Message, **markers: Any) -> None:
        """Send everything, and add the reply."""
        at = len(self.builder.threads[self.own])
        self._add_line(kind, {"ref": self.own, "at": at}, markers)
        self.say(reply)

    def ask_in_vain(self, kind: str, **markers: Any) -> None:
        """Send everything, but give up before there is a reply."""
        self._add_line(kind, {"role": "assistant", "content": ""}, markers)

    def fork(self, num_messages: int, *, session: str = "") -> Conversation:
        """Return a conversation that goes on from the first messages of this one."""
        return self.rebuilt(self.take(0, num_messages), session=session)

    def rebuilt(self, taken: tuple[Slice, ...], *, session: str = "") -> Conversation:
        """Return a conversation with the habits of this one that starts with those slices."""
        return Conversation(
            self.builder,
            session or self.session,
            taken,
            self.has_tools,
            self.strips_reasoning,
            self.reminder,
        )

    def take(self, start: int, end: int) -> tuple[Slice, ...]:
        """Return the slices that hold messages `[start, end)` of this conversation."""
        found = []
        position = 0
        for part in self._slices():
            first = max(start, position)
            position += part.end - part.start
            last = min(end, position)
            if first < last:
                offset = part.end - position
                found.append(Slice(part.thread, first + offset, last + offset))
        return tuple(found)

    def _slices(self) -> tuple[Slice, ...]:
        return (*self.taken, Slice(self.own, 0, len(self.builder.threads[self.own])))

    def _add_line(self, kind: str, reply: Message, markers: Mapping[str, Any]) -> None:
        first, *others = (part for part in self._slices() if part.start < part.end)
        assert first.start == 0
        edits: list[Edit] = []
        if others:
            items = [slice_of(part.thread, part.start, part.end) for part in others]
            edits.append(splice_in(first.end, items))
        lines = self.builder.lines
        lines.append(
            TraceLine(
                id=len(lines),
                session=self.session,
                kind=kind,
                t=round(self.builder.now_s, 1),
                thread=first.thread,
                upto=first.end,
                edits=(*edits, *self._habits()),
                tools=self.has_tools,
                reply=reply,
                markers=markers,
            )
        )

    def _habits(self) -> list[Edit]:
        users = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        edits: list[Edit] = []
        if self.strips_reasoning:
            edits.append({"op": "drop_reasoning", "before": users[-1]})
        if self.reminder:
            edits.append({"op": "append", "at": users[-1], "text": self.reminder})
        return edits

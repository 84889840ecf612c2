"""The trace format: recorded requests of an agent, each message stored once.

docs/trace-format.md describes it. A trace is read, written and expanded here; `replay` sends it,
the workloads of the benchmarks and `milepost serve --record` write it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from milepost.errors import BenchmarkFailed
from milepost.traces.edits import EditFailed, apply_edit

FORMAT_VERSION = 1
FILE_MODE = 0o600  # a trace is a transcript
MAIN_THREAD = "main"

Message = dict[str, Any]  # as clients send them
Tool = dict[str, Any]
Edit = dict[str, Any]

# Keys of a request line that say how to build its prompt or name a field of `TraceLine`.
_OWN_KEYS = {"id", "session", "kind", "t", "thread", "upto", "edits", "tools", "reply"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """One request of a trace, in the compact form of its line."""

    id: int
    session: str
    kind: str
    t: float  # seconds since the start of the trace
    upto: int  # the prompt starts with so many messages of the thread
    thread: str = MAIN_THREAD
    edits: tuple[Edit, ...] = ()  # then changes them like this; see `edits`
    tools: bool | tuple[int, ...] = True  # all of the trace's, none, or those at these indices
    reply: int | dict[str, Any]  # index in the thread, a message, or {"ref": thread, "at": index}
    markers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace in full. Messages are shared between requests: do not change them."""

    id: int
    session: str
    kind: str
    t: float
    messages: list[Message]
    tools: list[Tool]  # empty: the request has none
    reply: Message
    markers: Mapping[str, Any]

    @property
    def has_restart_before(self) -> bool:
        """Whether the server was restarted before this request."""
        return bool(self.markers.get("restart_before"))

    @property
    def cancel_after_fraction(self) -> float | None:
        """After which part of its prefill the client gave up; None: it did not."""
        fraction = self.markers.get("cancel_after_fraction")
        return None if fraction is None else float(fraction)

    @property
    def needs(self) -> str:
        """What the model must be able to do besides text, such as "images"; "": nothing."""
        return str(self.markers.get("needs", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace in its compact form."""

    name: str
    variant: str = ""
    started: str = ""  # ISO time of t = 0
    params: Mapping[str, Any] = field(default_factory=dict)  # what made it, for the reader
    tools: Sequence[Tool] = ()
    threads: Mapping[str, Sequence[Message]]
    lines: Sequence[TraceLine]

    def requests(self) -> Iterator[TraceRequest]:
        """Yield the requests in full, in the order of sending. Raises BenchmarkFailed."""
        for line in self.lines:
            yield expand_line(self, line)


def read_trace(path: Path) -> Trace:
    """Read a trace and check that every request of it can be built. Raises BenchmarkFailed."""
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise BenchmarkFailed(f"{path} is not a trace: it is not a text in UTF-8") from None
    except OSError as error:
        raise BenchmarkFailed(f"the trace {path} cannot be read: {error.strerror}") from None
    header = _parse_header(path, texts[0])
    lines = tuple(
        _parse_line(path, number, text)
        for number, text in enumerate(texts[1:], start=2)
        if text.strip()
    )
    trace = _build_trace(path, header, lines)
    _check_requests(path, trace)
    return trace


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace, readable for its owner only; a reader sees the old file or all of the new one.

    Raises BenchmarkFailed.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with open(descriptor, "wb") as file:
            for fields in (encode_header(trace), *map(encode_line, trace.lines)):
                file.write(msgspec.json.encode(fields) + b"\n")
        part.replace(path)
    except OSError as error:
        raise BenchmarkFailed(f"the trace {path} cannot be written: {error.strerror}") from None


def expand_line(trace: Trace, line: TraceLine) -> TraceRequest:
    """Return the full request that a line stands for. Raises BenchmarkFailed."""
    try:
        thread = trace.threads[line.thread]
        messages = _take_messages(thread, line.upto)
        for edit in line.edits:
            apply_edit(messages, edit, trace.threads)
        return TraceRequest(
            id=line.id,
            session=line.session,
            kind=line.kind,
            t=line.t,
            messages=messages,
            tools=_choose_tools(trace, line),
            reply=_find_reply(trace, line),
            markers=line.markers,
        )
    except EditFailed as error:
        raise BenchmarkFailed(f"trace {trace.name}, request {line.id}: {error}") from None
    except (KeyError, IndexError, TypeError) as error:
        raise BenchmarkFailed(
            f"trace {trace.name}, request {line.id} refers to what is not there: {error}"
        ) from None


def encode_header(trace: Trace) -> dict[str, Any]:
    """Return the first line of a trace."""
    return {
        "trace": FORMAT_VERSION,
        "name": trace.name,
        "variant": trace.variant,
        "started": trace.started,
        "params": dict(trace.params),
        "tools": list(trace.tools),
        "threads": {name: list(messages) for name, messages in trace.threads.items()},
    }


def encode_line(line: TraceLine) -> dict[str, Any]:
    """Return the line of a request; what has its usual value is left out."""
    fields: dict[str, Any] = {"id": line.id, "session": line.session, "kind": line.kind}
    fields["t"] = line.t
    if line.thread != MAIN_THREAD:
        fields["thread"] = line.thread
    fields["upto"] = line.upto
    if line.edits:
        fields["edits"] = list(line.edits)
    if line.tools is not True:
        fields["tools"] = line.tools if line.tools is False else list(line.tools)
    fields["reply"] = line.reply
    return fields | dict(line.markers)


def _check_requests(path: Path, trace: Trace) -> None:
    seen = set()
    for request in trace.requests():
        if request.id in seen:
            raise BenchmarkFailed(f"{path} has two requests with id {request.id}")
        seen.add(request.id)


def _take_messages(thread: Sequence[Message], upto: int) -> list[Message]:
    if not 0 <= upto <= len(thread):
        raise IndexError(f"{upto} messages of a thread of {len(thread)}")
    return list(thread[:upto])


def _choose_tools(trace: Trace, line: TraceLine) -> list[Tool]:
    if isinstance(line.tools, bool):
        return list(trace.tools) if line.tools else []
    return [trace.tools[index] for index in line.tools]


def _find_reply(trace: Trace, line: TraceLine) -> Message:
    if isinstance(line.reply, int):
        return trace.threads[line.thread][line.reply]
    if "ref" in line.reply:
        return trace.threads[line.reply["ref"]][int(line.reply["at"])]
    return line.reply


def _parse_header(path: Path, text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict) or "trace" not in header:
        raise BenchmarkFailed(
            f'{path} is not a trace: its first line is no JSON object with a "trace" key'
        )
    if header["trace"] != FORMAT_VERSION:
        raise BenchmarkFailed(
            f"{path} is a trace of format {header['trace']!r}; this version of milepost reads "
            f"format {FORMAT_VERSION}"
        )
    fields: dict[str, Any] = header
    return fields


def _parse_line(path: Path, number: int, text: str) -> TraceLine:
    try:
        fields = json.loads(text)
        return TraceLine(
            id=int(fields["id"]),
            session=str(fields.get("session", "")),
            kind=str(fields.get("kind", "")),
            t=float(fields.get("t", 0.0)),
            upto=int(fields["upto"]),
            thread=str(fields.get("thread", MAIN_THREAD)),
            edits=tuple(fields.get("edits", ())),
            tools=_parse_tools(fields.get("tools", True)),
            reply=fields["reply"],
            markers={key: value for key, value in fields.items() if key not in _OWN_KEYS},
        )
    except KeyError as error:
        raise BenchmarkFailed(f"{path}, line {number}: the request has no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise BenchmarkFailed(f"{path}, line {number} is not a request: {error}") from None


def _parse_tools(value: Any) -> bool | tuple[int, ...]:
    return value if isinstance(value, bool) else tuple(int(index) for index in value)


def _build_trace(path: Path, header: dict[str, Any], lines: tuple[TraceLine, ...]) -> Trace:
    threads = header.get("threads")
    if not isinstance(threads, dict):
        raise BenchmarkFailed(f"{path}, line 1: the header has no threads")
    return Trace(
        name=str(header.get("name") or path.stem),
        variant=str(header.get("variant", "")),
        started=str(header.get("started", "")),
        params=header.get("params") or {},
        tools=header.get("tools") or [],
        threads=threads,
        lines=lines,
    )

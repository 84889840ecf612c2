"""Turns the text of a reply, in whatever increments it comes, into `reply_events`.

What the events are does not depend on where the text is cut, only when they come: text is held
back while it may become a marker, and not longer. Nothing that a model writes is an error. What
looked like a call and is none is passed on as text, with a ParseWarning; a call that breaks off
after its start stays without CallEnd.

Reasoning is looked for where a reply begins, after other reasoning, and after calls; elsewhere
its markers are text, unless they are control tokens. A call inside reasoning, of a tool that was
given, is a call if the reasoning never ends; otherwise it is reasoning as well. Models that write
calls without a marker may write them only where a reply begins, and only of tools that were given.

    text ──> TextSource ──> readers (generators) ──> ReplyWriter ──> events
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from milepost.chat.formats.reply_events import ContentText, ParseWarning, ReasoningText, ReplyEvent
from milepost.chat.formats.reply_format import (
    CallReading,
    ReplyFormat,
    ToolCallFormat,
    tells_of_call,
)
from milepost.chat.formats.reply_writer import ReplyWriter, make_call_id
from milepost.chat.formats.text_pieces import first_tag
from milepost.chat.formats.text_source import Malformed, OutOfText, Steps, Stops, TextSource, Write

CONTROL = re.compile(r"<[|｜]|[|｜]>")  # as control tokens are spelled, and no text
BARE_SEPARATOR = ";"  # between calls that have no markers (Llama 3)


class ReplyParser:
    """Parses one reply. Not safe to use from two threads."""

    def __init__(
        self,
        reply_format: ReplyFormat,
        *,
        in_reasoning: bool = False,
        tools: Iterable[Mapping[str, Any]] = (),
        lead: str = "",
        make_id: Callable[[], str] = make_call_id,
    ) -> None:
        """Prepare for a reply.

        `in_reasoning` says that the prompt ends inside a reasoning block. `tools` are those of
        the request, as OpenAI writes them; without any, nothing is a call. A format without
        reasoning leaves it in the content as it was written, after `lead`.
        """
        parameters = _read_parameters(tools)
        self._source = TextSource()
        self._writer = ReplyWriter(self._source, parameters, make_id)
        self._writer.content(lead)
        self._reasoning = reply_format.reasoning
        self._content = reply_format.content
        self._write: Write = self._writer.content  # what text belongs to
        self._calls: _CallMarkers | None = None
        self._steps = self._read_reply(in_reasoning and self._reasoning is not None)
        calls = reply_format.tool_calls
        if calls is None:
            return
        self._reading = CallReading(
            source=self._source,
            form=calls,
            writer=self._writer,
            parameters=parameters,
            parses_reasoning=self._reasoning is not None,
            starts_in_reasoning=in_reasoning,
        )
        if calls.body.reads_whole_reply:
            self._steps = calls.body.read_calls(self._reading)
        elif parameters:
            self._calls = _CallMarkers(calls)

    def feed(self, text: str) -> list[ReplyEvent]:
        """Take more of the text; return what is certain now."""
        if text:
            self._source.feed(text)
            self._advance()
        return self._writer.drain()

    def finish(self, *, is_truncated: bool) -> list[ReplyEvent]:
        """Return the last events; nothing may be fed afterwards.

        With `is_truncated` the model would have gone on: what is held back because it may become
        a marker, or white space before one, is dropped, and the events are the beginning of those
        of the whole reply.
        """
        self._source.end()
        self._advance()
        if is_truncated:
            self._writer.undo_trial()
        else:
            self._writer.keep_trial()
            self._finish_text()
        return self._writer.drain()

    def _finish_text(self) -> None:
        rest = self._source.rest()
        if self._writer.is_call_open:
            self._writer.warn("the reply ends inside a tool call")
        elif rest.strip():
            if self._source.since_mark():
                self._writer.warn("the reply ends before a tool call has its name")
            self._write(rest)
        self._writer.flush()

    def _advance(self) -> None:
        with contextlib.suppress(OutOfText):  # `finish` sees to the rest
            next(self._steps, None)

    def _read_reply(self, in_reasoning: bool) -> Steps[None]:
        calls = self._calls
        tokens = self._reasoning_tokens
        starts = calls.starts if calls else ()
        stops = Stops((*starts, self._content.start, self._content.end, *tokens))
        if in_reasoning:
            assert self._reasoning is not None
            self._write = self._writer.reasoning
            yield from self._source.match_after_space((self._reasoning.start.strip(),))
            yield from self._read_reasoning()
        while True:
            yield from self._read_start()
            stop = yield from self._source.copy_until(stops, self._writer.content)
            if stop in starts:
                yield from self._read_calls(stop)
            elif stop in tokens and self._writer.is_quoting:
                self._writer.content(stop)
            elif stop in tokens[:1]:
                yield from self._read_reasoning()

    @property
    def _reasoning_tokens(self) -> tuple[str, ...]:
        """Start and end of reasoning where they are control tokens, which no text has."""
        if self._reasoning is None:
            return ()
        start, end = self._reasoning.start.strip(), self._reasoning.end.strip()
        return (start, end) if CONTROL.search(start) and CONTROL.search(end) else ()

    def _read_start(self) -> Steps[None]:
        """Read what may only stand where text begins: reasoning, and calls without markers."""
        start = self._reasoning.start.strip() if self._reasoning is not None else ""
        end = self._reasoning.end.strip() if self._reasoning is not None else ""
        twice = (
            first_tag(start) + start if self._reasoning_tokens else ""
        )  # as Gemma 4 may write it
        bare = self._calls.bare_start if self._calls is not None else ""
        while start or bare:
            self._source.mark()
            found = yield from self._source.match_after_space((start, end, twice, bare))
            if found and found in (start, twice):
                self._source.unmark()
                yield from self._read_reasoning()
            elif found and found == end:  # of reasoning that was never begun
                self._writer.end_reasoning()
            elif found:
                self._source.back(len(found))
                yield from self._read_marked_calls(found)
                return
            else:
                self._source.unmark()
                return

    def _read_reasoning(self) -> Steps[None]:
        """Read reasoning whose start has been read, up to its end and with it."""
        assert self._reasoning is not None
        end = self._reasoning.end.strip()
        starts = self._calls.starts if self._calls is not None else ()
        stops = Stops((end, *starts))
        self._write = self._writer.reasoning
        while (stop := (yield from self._source.copy_until(stops, self._write))) != end:
            if (yield from self._read_calls_of_reasoning(stop, stops, end)):
                break
        self._writer.end_reasoning()
        self._write = self._writer.content

    def _read_calls_of_reasoning(self, stop: str, stops: Stops, end: str) -> Steps[bool]:
        """Read what may be calls of a model that forgot to end its reasoning; say if it did not.

        If the end comes after all, they were reasoning, with everything up to it.
        """
        num_calls = self._writer.num_calls
        self._source.hold(len(stop))
        self._writer.begin_trial()
        yield from self._read_calls(stop)
        if self._writer.num_calls == num_calls:
            self._writer.keep_trial()
            self._source.release()
            return False
        self._writer.end_reasoning()
        self._write = self._writer.content
        while (stop := (yield from self._source.copy_until(stops, self._write))) != end:
            yield from self._read_calls(stop)
        self._writer.undo_trial()
        self._writer.reasoning(self._source.release().removesuffix(end))
        return True

    def _read_calls(self, stop: str) -> Steps[None]:
        """Read calls after a marker that has just been read."""
        self._source.mark(len(stop))
        yield from self._read_marked_calls(stop)

    def _read_marked_calls(self, stop: str) -> Steps[None]:
        """Read calls; what turns out to be none is text from the marked place on."""
        assert self._calls is not None
        is_in_reasoning = self._write == self._writer.reasoning
        self._writer.needs_known_name = is_in_reasoning or stop in self._calls.doubtful_starts
        try:
            yield from self._read_section(self._calls, stop)
        except Malformed as problem:
            self._writer.abandon_call(problem)
            self._write(self._source.since_mark())
        self._source.unmark()

    def _read_section(self, calls: _CallMarkers, stop: str) -> Steps[None]:
        source, body = self._source, self._reading.form.body
        is_section = stop == calls.section_start
        if is_section and calls.call_start:
            yield from source.expect_after_space(calls.call_start)
        elif stop and stop == calls.head:
            source.back(len(stop))
        start = calls.call_start or calls.head or calls.body_start
        followers = (calls.section_end if is_section else "", calls.separator, start)
        while True:
            yield from body.read_calls(self._reading)
            source.mark()
            is_closed = yield from source.match_after_space((calls.call_end,))
            source.mark()
            # Some models write several objects between one pair of markers.
            more = "" if is_closed else calls.body_start
            follower = yield from source.match_after_space((*followers, more))
            if follower == calls.section_end or not follower:
                return
            if follower == calls.separator and follower != start:
                yield from source.expect_after_space(start)
                follower = start
            if follower != calls.call_start:
                source.back(len(follower))  # it is part of the body


class RepeatingParser(ReplyParser):
    """Adds reasoning, between its markers, to the content (`deepseek-legacy`)."""

    _is_open = False  # reasoning in the content

    def feed(self, text: str) -> list[ReplyEvent]:
        """Take more text; return what it makes certain."""
        return list(self._repeat(super().feed(text)))

    def finish(self, *, is_truncated: bool = False) -> list[ReplyEvent]:
        """Return the last events."""
        return list(self._repeat(super().finish(is_truncated=is_truncated)))

    def _repeat(self, events: Iterable[ReplyEvent]) -> Iterator[ReplyEvent]:
        reasoning = self._reasoning
        for event in events:
            if reasoning is not None and isinstance(event, ReasoningText):
                yield event
                yield ContentText(event.text if self._is_open else reasoning.start + event.text)
                self._is_open = True
                continue
            if self._is_open and reasoning is not None and not isinstance(event, ParseWarning):
                yield ContentText(reasoning.end)
                self._is_open = False
            yield event


class _CallMarkers:
    """What a format's calls are recognised by, without white space around it."""

    def __init__(self, form: ToolCallFormat) -> None:
        self.section_start, self.section_end = form.section.start.strip(), form.section.end.strip()
        self.call_start, self.call_end = form.call.start.strip(), form.call.end.strip()
        self.separator = form.separator.strip()
        self.head = form.body.head
        # What a body without a marker before it begins with; of lists there is one only.
        self.body_start = "" if form.body.is_list else form.body.bare_start
        is_marked = bool(form.start_marker)
        self.bare_start = "" if is_marked else form.body.bare_start
        if self.bare_start:
            self.separator = self.separator or BARE_SEPARATOR
        lone_head = form.body.lone_head if is_marked else self.head
        starts = (self.section_start, self.call_start, lone_head)
        self.starts = tuple(dict.fromkeys(text for text in starts if tells_of_call(text)))
        self.doubtful_starts = frozenset({self.bare_start, self.head} - {""})


def _read_parameters(tools: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Return the schema of each tool's arguments by its name."""
    found: dict[str, object] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters")
    return found

"""Replies of gpt-oss: messages with a channel and, where they are calls, a recipient.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

`analysis` is reasoning, a recipient makes a call, everything else is content. What ends a message
ends the reply too, except for `<|end|>`, so it is mostly not part of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, Schema, choice, seq
from milepost.chat.formats.json_text import copy_arguments
from milepost.chat.formats.json_values import write_arguments, write_json
from milepost.chat.formats.probe_texts import ANSWER, USER, Probe, answer, between, user
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    GrammarSpec,
    ReasoningFormat,
    ReplyFormat,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource, Write

MESSAGE = "<|message|>"
STARTS = ("<|start|>", "<|channel|>", "to=", "<|constrain|>", MESSAGE)
HEADERS = ("<|start|>", "<|channel|>")
ENDS = ("<|end|>", "<|return|>", "<|call|>")
BODY_STOPS = Stops((*ENDS, *HEADERS))
HEADER_STOPS = Stops((MESSAGE, *ENDS))
MAX_HEADER_CHARS = 512  # arbitrary
CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]+)")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
NAMESPACE = "functions."
NEXT = "<|start|>assistant"
FINAL = Affix("<|channel|>final<|message|>")
ANALYSIS = ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class HarmonyBody(CallBody):
    """gpt-oss: `<|channel|>commentary to=functions.NAME <|message|>{…}`."""

    name: ClassVar = "harmony"
    reads_whole_reply: ClassVar = True

    @property
    def markers(self) -> tuple[str, ...]:
        """The tokens in the headers of messages, and at their ends."""
        return ("<|channel|>", MESSAGE, "<|constrain|>", "<|start|>", "<|end|>")

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read messages until the text ends."""
        source, writer = reading.source, reading.writer
        if reading.starts_in_reasoning:
            yield from _copy_body(
                source, writer.reasoning if reading.parses_reasoning else writer.content
            )
            writer.end_reasoning()
        while True:
            source.mark()
            start = yield from source.match_after_space(STARTS)
            if not start:
                source.unmark()
                yield from _copy_body(source, writer.content)
                continue
            source.back(len(start))
            try:
                header, stop = yield from source.read_until(HEADER_STOPS, MAX_HEADER_CHARS)
            except Malformed as problem:
                _give_up(source, writer, problem)
                continue
            if stop != MESSAGE:
                source.unmark()
                continue
            yield from _read_message(reading, header)

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool, from after its `functions.` on."""
        mark = writer.optional(writer.exact("<|constrain|>"))
        kind = writer.optional(seq(writer.space, mark, writer.plain("json")))
        name = writer.plain(tool.name)
        # The recipient may stand in the head of the message, where templates put it, or after it.
        head = seq(name, writer.exact("<|channel|>"), writer.plain("commentary"), kind)
        bare = seq(name, kind)
        arguments = write_arguments(tool, writer)
        end = writer.optional(writer.exact("<|call|>"))
        return seq(choice(head, bare), writer.space, writer.exact(MESSAGE), arguments, end)

    def can_write_name(self, name: str) -> bool:
        """Names end at white space."""
        return bool(name) and not any(char.isspace() or char == "<" for char in name)

    def write_whole_grammar(self, spec: GrammarSpec, writer: GrammarWriter) -> str:
        """Return an expression for a reply that ends with a call, or with an answer.

        <|channel|>analysis<|message|>… <|end|><|start|>assistant
        <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}      (the end)
        <|channel|>final<|message|>…                                                 (the end)
        """
        form = ToolCallFormat(self)
        calls = [self.write_call_grammar(tool, form, writer) for tool in spec.tools]
        ends = []
        if calls:
            recipient = writer.plain(f" to={NAMESPACE}")
            channel = choice(writer.plain("commentary"), writer.plain("analysis"))
            head = choice(seq(writer.exact("<|channel|>"), channel, recipient), recipient)
            ends.append(seq(head, choice(*calls)))
        if not spec.must_call:
            ends.append(_write_final(spec.schema, writer))
        before = [_write_talk("analysis", writer)] if spec.reasoning != "none" else []
        if calls:
            before.append(_write_talk("commentary", writer))
        lead = f"{choice(*before)}*" if before else ""
        rest = seq(lead, choice(*ends))
        return seq(_write_rest_of_talk(writer), rest) if spec.reasoning == "open" else rest

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a message with the call, from after the name of its author on."""
        head = f"<|channel|>commentary to={NAMESPACE}{call.name} <|constrain|>json{MESSAGE}"
        return f"{head}{call.arguments_text}<|call|>"

    @classmethod
    def recognise_reply(cls, probe: Probe, reasoning: ReasoningFormat | None) -> ReplyFormat | None:
        """Return the format if answers stand in a channel of their own.

        It holds text and reasoning too, and no history shows all of it.
        """
        lead = between(probe.history(user(), answer(), user()), USER, ANSWER)
        lead = lead or between(probe.history(user(), answer()), USER, ANSWER)
        if lead is None or not lead.endswith(FINAL.start):
            return None
        earlier = reasoning.earlier if reasoning is not None else "dropped"
        calls = ToolCallFormat(cls(), takes_several=False)
        return ReplyFormat(replace(ANALYSIS, earlier=earlier), calls, FINAL)


# --- reading -----------------------------------------------------------------------------


def _read_message(reading: CallReading, header: str) -> Steps[None]:
    source, writer = reading.source, reading.writer
    recipient = RECIPIENT.search(header)
    channels = CHANNEL.findall(header)
    if recipient is not None and recipient[1] != "assistant" and reading.parameters:
        writer.needs_known_name = not recipient[1].startswith(NAMESPACE)
        try:
            yield from _read_call(source, writer, recipient[1].removeprefix(NAMESPACE))
        except Malformed as problem:
            _give_up(source, writer, problem)
        return
    if channels[-1:] == ["analysis"]:
        if reading.parses_reasoning:
            source.unmark()
            yield from _copy_body(source, writer.reasoning)
            writer.end_reasoning()
            return
        writer.content(source.since_mark())
        source.unmark()
        stop = yield from _copy_body(source, writer.content)
        writer.content("" if stop in HEADERS else stop)
        return
    source.unmark()
    yield from _copy_body(source, writer.content)


def _read_call(source: TextSource, writer: ReplyWriter, name: str) -> Steps[None]:
    if (yield from source.peek_after_space()) not in '{"n':
        raise Malformed("the arguments are missing")
    writer.begin_call(name)
    yield from copy_arguments(source, writer.arguments)
    writer.end_call()
    yield from source.match_after_space(ENDS)


def _copy_body(source: TextSource, write: Write) -> Steps[str]:
    """Copy text up to the end of its message, and return it; a header there is not read."""
    stop = yield from source.copy_until(BODY_STOPS, write)
    if stop in HEADERS:
        source.back(len(stop))
    return stop


def _give_up(source: TextSource, writer: ReplyWriter, problem: Malformed) -> None:
    """Pass on what was taken for a call."""
    writer.abandon_call(problem)
    writer.content(source.since_mark())
    source.unmark()


# --- grammar -----------------------------------------------------------------------------


def _write_final(schema: Schema | None, writer: GrammarWriter) -> str:
    kind = seq(writer.space, writer.exact("<|constrain|>"), writer.plain("json"))
    channel = seq(writer.exact("<|channel|>"), writer.plain("final"))
    if schema is None:
        return seq(channel, writer.exact("<|message|>"), writer.text(["<|channel|>"]))
    json = write_json(schema, writer)
    return seq(channel, writer.optional(kind), writer.exact("<|message|>"), json)


def _write_talk(channel: str, writer: GrammarWriter) -> str:
    head = seq(writer.exact("<|channel|>"), writer.plain(channel), writer.exact("<|message|>"))
    return seq(head, _write_rest_of_talk(writer))


def _write_rest_of_talk(writer: GrammarWriter) -> str:
    return seq(writer.until("<|end|>", ["<|start|>", "<|channel|>"]), writer.exact(NEXT))

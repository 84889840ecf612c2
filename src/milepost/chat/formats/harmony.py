"""Reads replies of gpt-oss: messages with a channel and, where they are calls, a recipient.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

`analysis` is reasoning, a recipient makes a call, everything else is content. What ends a message
ends the reply too, except for `<|end|>`, so it is mostly not part of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from milepost.chat.formats.json_text import copy_arguments
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


@dataclass(frozen=True, slots=True)
class HarmonyOptions:
    """What is done with the messages of a reply."""

    parses_calls: bool
    parses_reasoning: bool  # else it stays in the content as it was written
    starts_in_reasoning: bool  # the prompt ends inside a message of the analysis


def read_harmony_reply(
    source: TextSource, options: HarmonyOptions, writer: ReplyWriter
) -> Steps[None]:
    """Read messages until the text ends, which raises OutOfText."""
    if options.starts_in_reasoning:
        yield from _copy_body(
            source, writer.reasoning if options.parses_reasoning else writer.content
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
        yield from _read_message(source, options, writer, header)


def _read_message(
    source: TextSource, options: HarmonyOptions, writer: ReplyWriter, header: str
) -> Steps[None]:
    recipient = RECIPIENT.search(header)
    channel = CHANNEL.search(header)
    if recipient is not None and options.parses_calls:
        writer.needs_known_name = not recipient[1].startswith(NAMESPACE)
        try:
            yield from _read_call(source, writer, recipient[1].removeprefix(NAMESPACE))
        except Malformed as problem:
            _give_up(source, writer, problem)
        return
    if channel is not None and channel[1] == "analysis":
        if options.parses_reasoning:
            source.unmark()
            yield from _copy_body(source, writer.reasoning)
            writer.end_reasoning()
            return
        writer.content(source.since_mark())
    source.unmark()
    yield from _copy_body(source, writer.content)


def _read_call(source: TextSource, writer: ReplyWriter, name: str) -> Steps[None]:
    if (yield from source.peek_after_space()) not in '{"n':
        raise Malformed("the arguments are missing")
    writer.begin_call(name)
    yield from copy_arguments(source, writer.arguments)
    writer.end_call()
    yield from source.match_after_space(ENDS)


def _copy_body(source: TextSource, write: Write) -> Steps[None]:
    """Copy text up to the end of its message; a header that follows is not read."""
    stop = yield from source.copy_until(BODY_STOPS, write)
    if stop in HEADERS:
        source.back(len(stop))


def _give_up(source: TextSource, writer: ReplyWriter, problem: Malformed) -> None:
    """Pass on what was taken for a call."""
    writer.abandon_call(problem)
    writer.content(source.since_mark())
    source.unmark()

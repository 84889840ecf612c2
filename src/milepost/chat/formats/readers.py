"""The table of bodies and their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from milepost.chat.formats.braced_calls import read_braced_call
from milepost.chat.formats.json_calls import read_json_calls
from milepost.chat.formats.named_json_calls import read_named_json_call
from milepost.chat.formats.pythonic_calls import read_pythonic_calls
from milepost.chat.formats.reply_format import (
    BracedBody,
    CallBody,
    JsonBody,
    NamedJsonBody,
    PythonicBody,
    TaggedBody,
    ToolCallFormat,
)
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.tagged_calls import read_tagged_call
from milepost.chat.formats.text_source import Steps, TextSource


@dataclass(frozen=True, slots=True)
class CallReading:
    """What readers work with."""

    source: TextSource
    form: ToolCallFormat
    writer: ReplyWriter
    parameters: Mapping[str, object]  # schema of the arguments by the name of a tool


def read_body(reading: CallReading) -> Steps[None]:
    """Read one call, or a list of calls, from where its body begins; raises Malformed."""
    return READERS[type(reading.form.body)](reading)


def _json(reading: CallReading) -> Steps[None]:
    assert isinstance(reading.form.body, JsonBody)
    return read_json_calls(reading.source, reading.form.body, reading.writer)


def _named_json(reading: CallReading) -> Steps[None]:
    assert isinstance(reading.form.body, NamedJsonBody)
    return read_named_json_call(reading.source, reading.form.body, reading.writer)


def _tagged(reading: CallReading) -> Steps[None]:
    return read_tagged_call(reading.source, reading.form, reading.writer, reading.parameters)


def _pythonic(reading: CallReading) -> Steps[None]:
    return read_pythonic_calls(reading.source, reading.writer)


def _braced(reading: CallReading) -> Steps[None]:
    assert isinstance(reading.form.body, BracedBody)
    return read_braced_call(reading.source, reading.form.body, reading.writer)


# HarmonyBody is not here: `harmony` reads whole replies.
READERS: Mapping[type[CallBody], Callable[[CallReading], Steps[None]]] = {
    JsonBody: _json,
    NamedJsonBody: _named_json,
    TaggedBody: _tagged,
    PythonicBody: _pythonic,
    BracedBody: _braced,
}

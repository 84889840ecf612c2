"""Reads calls as Gemma 4 writes them, and writes their arguments as JSON.

call:read{path:<|"|>a.py<|"|>,lines:[1,20]}
"""

from __future__ import annotations

import json
import re

from milepost.chat.formats.argument_writer import ArgumentWriter, quote
from milepost.chat.formats.json_text import escape
from milepost.chat.formats.reply_format import BracedBody
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS, ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource, Write

MAX_DEPTH = 32  # of nested values; arbitrary
MAX_KEY_CHARS = 1024  # arbitrary
BARE = re.compile(r"[^,{}\[\]]+")  # a number, a word


def read_braced_call(source: TextSource, body: BracedBody, writer: ReplyWriter) -> Steps[None]:
    """Read one call."""
    yield from source.expect_after_space(body.name_start)
    name, _ = yield from source.read_until(Stops(["{"]), MAX_NAME_CHARS)
    is_closed = yield from source.match_after_space(("}",))
    if not is_closed:
        key = yield from _read_key(source, body)
    writer.begin_call(name.strip())
    arguments = ArgumentWriter(writer.arguments)
    while not is_closed:
        arguments.key(key)
        yield from _copy_value(source, body, arguments.write, MAX_DEPTH)
        is_closed = yield from source.match_after_space(("}",))
        if not is_closed:
            yield from source.expect_after_space(",")
            key = yield from _read_key(source, body)
    arguments.end()
    writer.end_call()


def _read_key(source: TextSource, body: BracedBody) -> Steps[str]:
    pieces: list[str] = []
    if (yield from source.match_after_space((body.quote,))):
        yield from source.copy_until(Stops([body.quote]), pieces.append)
        yield from source.expect_after_space(":")
        return "".join(pieces)
    key, stop = yield from source.read_until(Stops([":", ",", "{", "}"]), MAX_KEY_CHARS)
    if stop != ":" or not key.strip():
        raise Malformed("the name of an argument is missing")
    return key.strip()


def _copy_value(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    if depth == 0:
        raise Malformed(f"values are nested more than {MAX_DEPTH} deep")
    opener = yield from source.match_after_space((body.quote, "[", "{"))
    if opener == "[":
        yield from _copy_list(source, body, write, depth)
    elif opener == "{":
        yield from _copy_object(source, body, write, depth)
    elif opener:
        write('"')
        yield from source.copy_until(Stops([body.quote]), lambda text: write(escape(text)))
        write('"')
    else:
        write(_bare_to_json((yield from source.read_while(BARE)).strip()))


def _copy_list(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    write("[")
    gap = ""
    while not (yield from source.match_after_space(("]",))):
        write(gap)
        gap = ", "
        yield from _copy_value(source, body, write, depth - 1)
        if (yield from source.peek_after_space()) != "]":
            yield from source.expect_after_space(",")
    write("]")


def _copy_object(source: TextSource, body: BracedBody, write: Write, depth: int) -> Steps[None]:
    arguments = ArgumentWriter(write)
    while not (yield from source.match_after_space(("}",))):
        arguments.key((yield from _read_key(source, body)))
        yield from _copy_value(source, body, write, depth - 1)
        if (yield from source.peek_after_space()) != "}":
            yield from source.expect_after_space(",")
    arguments.end()


def _bare_to_json(text: str) -> str:
    """Return a value without quotes as JSON: as it is where it is JSON, else as a string."""
    if not text:
        raise Malformed("a value is missing")
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return quote(text)
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")

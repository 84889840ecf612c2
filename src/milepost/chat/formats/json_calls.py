"""Reads calls that are JSON objects with the name and the arguments, alone or in a list.

    {"name": "read", "arguments": {"path": "a.py"}}

A list is read wherever one begins, and the keys `arguments` and `parameters` both do: models mix
them up. Arguments that stand before the name, or before an id that the format promises, are held
back until it comes. Where calls have no marker, a key that no call has ends the attempt at once: an
answer in JSON must not be held back to its end.
"""

from __future__ import annotations

from dataclasses import replace

from milepost.chat.formats.json_text import copy_arguments, copy_json, read_string
from milepost.chat.formats.reply_format import JsonBody
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, TextSource

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("type", "id")


def read_json_calls(source: TextSource, body: JsonBody, writer: ReplyWriter) -> Steps[None]:
    """Read one call, or a list of calls."""
    if (yield from source.peek_after_space()) != "[":
        yield from _read_call(source, body, writer)
        return
    yield from source.take(1)
    yield from read_json_list(source, body, writer)


def read_json_list(source: TextSource, body: JsonBody, writer: ReplyWriter) -> Steps[None]:
    """Read a list of calls whose bracket has been read."""
    if (yield from source.match_after_space(("]",))):
        return
    while True:
        yield from _read_call(source, body, writer)
        if (yield from source.match_after_space(("]",))):
            return
        yield from source.expect_after_space(",")


class _Draft:
    """What is known of a call; begins it as soon as that is enough."""

    def __init__(self, body: JsonBody, writer: ReplyWriter) -> None:
        self._body = body
        self._writer = writer
        self._held: list[str] = []
        self._has_begun = False
        self.name = ""
        self.call_id = ""
        self.has_arguments = False  # all of them

    def write(self, text: str) -> None:
        """Write a part of the arguments."""
        if self.name and (self.call_id or not self._body.id_key):
            self._begin()
            self._writer.arguments(text)
        else:
            self._held.append(text)

    def check_other_key(self, key: str) -> None:
        """Raise Malformed where a key shows that this is no call."""
        if self._writer.needs_known_name and key not in OTHER_KEYS:
            raise Malformed("there is a key that no call has")

    def end(self) -> None:
        """End the call."""
        self._begin()
        if not self.has_arguments:
            self._writer.arguments("{}")
        self._writer.end_call()

    def _begin(self) -> None:
        if not self._has_begun:
            self._writer.begin_call(self.name, self.call_id)
            self._has_begun = True
            self._writer.arguments("".join(self._held))
            self._held.clear()


def _read_call(source: TextSource, body: JsonBody, writer: ReplyWriter) -> Steps[None]:
    draft = _Draft(body, writer)
    try:
        yield from _read_members(source, body, draft)
    except Malformed as problem:
        if not (draft.name and draft.has_arguments):
            raise
        writer.warn(f"a tool call is complete, but behind its arguments {problem}")
    draft.end()


def _read_members(source: TextSource, body: JsonBody, draft: _Draft) -> Steps[None]:
    yield from source.expect_after_space("{")
    if (yield from source.match_after_space(("}",))):
        return
    while True:
        key = yield from read_string(source)
        yield from source.expect_after_space(":")
        yield from source.skip_space()
        yield from _read_member(source, body, draft, key)
        if (yield from source.match_after_space(("}",))):
            return
        yield from source.expect_after_space(",")


def _read_member(source: TextSource, body: JsonBody, draft: _Draft, key: str) -> Steps[None]:
    char = yield from source.peek()
    if body.wrapper_key and key == body.wrapper_key and char == "{":
        yield from _read_members(source, replace(body, wrapper_key=""), draft)
    elif key == body.name_key and char == '"':
        draft.name = yield from read_string(source)
    elif key == body.id_key and char == '"':
        draft.call_id = yield from read_string(source)
    elif (key == body.arguments_key or key in ARGUMENT_KEYS) and not draft.has_arguments:
        yield from copy_arguments(source, draft.write)
        draft.has_arguments = True
    else:
        draft.check_other_key(key)
        yield from copy_json(source, _skip)


def _skip(text: str) -> None:
    """Write nothing: the member says nothing about the call."""

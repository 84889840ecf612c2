"""Reads calls whose arguments stand in tags of their own, and writes them as JSON.

    <function=read><parameter=path>
    a.py
    </parameter></function>

A value whose schema says string is streamed; every other one is written when it is complete,
because only then it shows whether it is JSON. A value ends at its closing tag where a tag of the
format follows: text about tags may stand in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from milepost.chat.formats.argument_writer import ArgumentWriter
from milepost.chat.formats.parameter_types import ANY, permitted_types, to_json
from milepost.chat.formats.reply_format import TaggedBody, ToolCallFormat
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS, ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource, Write

MAX_KEY_CHARS = 1024  # arbitrary
ONLY_STRING = frozenset(["string"])
NO_STRING = frozenset(["null", "boolean", "number", "array", "object"])


@dataclass(frozen=True, slots=True)
class _Tags:
    """A body's markers as they are looked for: cut at white space, which has no meaning there."""

    name_start: tuple[str, ...]
    name_end: tuple[str, ...]
    key_start: tuple[str, ...]
    key_end: tuple[str, ...]
    json_key_end: tuple[str, ...]
    value_end: tuple[str, ...]
    followers: tuple[str, ...]  # one of them stands behind a value, and behind the name
    arguments_end: str
    breaks_before_value: bool  # one line break there is the template's
    breaks_behind_value: bool

    @classmethod
    def of(cls, form: ToolCallFormat, body: TaggedBody) -> _Tags:
        """Return the tags of a format."""
        key_start, end = tuple(body.key_start.split()), body.arguments_end.strip()
        ends = (end, form.call.end.strip(), form.section.end.strip())
        return cls(
            name_start=tuple(body.name_start.split()),
            name_end=tuple(body.name_end.split()),
            key_start=key_start,
            key_end=tuple(body.key_end.split()),
            json_key_end=tuple(body.json_key_end.split()),
            value_end=tuple(body.value_end.split()),
            followers=tuple(text for text in (*key_start[:1], *ends) if text),
            arguments_end=end,
            breaks_before_value=body.key_end.endswith("\n"),
            breaks_behind_value=body.value_end.startswith("\n"),
        )


def read_tagged_call(
    source: TextSource,
    form: ToolCallFormat,
    writer: ReplyWriter,
    parameters: Mapping[str, object],
) -> Steps[None]:
    """Read one call; `parameters` has the schema of the arguments by the name of a tool."""
    assert isinstance(form.body, TaggedBody)
    tags = _Tags.of(form, form.body)
    yield from _expect_all(source, tags.name_start)
    name = yield from _read_name(source, tags)
    follower = yield from source.peek_any_after_space(tags.followers)
    if not follower:
        raise Malformed("neither an argument nor the end of the call is behind the name")
    writer.begin_call(name)
    arguments = ArgumentWriter(writer.arguments)
    while tags.key_start and follower == tags.key_start[0]:
        yield from _read_argument(source, tags, arguments, parameters.get(name))
        follower = yield from source.peek_any_after_space(tags.followers)
    arguments.end()
    writer.end_call()
    yield from source.match_after_space((tags.arguments_end,))


def _read_name(source: TextSource, tags: _Tags) -> Steps[str]:
    if tags.name_end:
        name, _ = yield from source.read_until(Stops(tags.name_end[:1]), MAX_NAME_CHARS)
        yield from _expect_all(source, tags.name_end[1:])
        return name.strip()
    yield from source.skip_space()
    stops = Stops((*tags.followers, "\n"))
    name, stop = yield from source.read_until(stops, MAX_NAME_CHARS)
    source.back(len(stop))
    return name.strip()


def _read_argument(
    source: TextSource, tags: _Tags, arguments: ArgumentWriter, parameters: object
) -> Steps[None]:
    yield from _expect_all(source, tags.key_start)
    key, _ = yield from source.read_until(Stops(tags.key_end[:1]), MAX_KEY_CHARS)
    types = yield from _read_key_end(source, tags)
    if tags.breaks_before_value and (yield from source.peek()) == "\n":
        yield from source.take(1)
    types = types or permitted_types(parameters, key.strip())
    arguments.key(key.strip())
    if types == ONLY_STRING:
        arguments.write('"')
        yield from _read_value(source, tags, arguments.string_piece)
        arguments.write('"')
    else:
        pieces: list[str] = []
        yield from _read_value(source, tags, pieces.append)
        arguments.write(to_json("".join(pieces), types))


def _read_key_end(source: TextSource, tags: _Tags) -> Steps[frozenset[str]]:
    """Read what is left of the end of a key; return the types that it says, if it says any."""
    if not tags.json_key_end:
        yield from _expect_all(source, tags.key_end[1:])
        return ANY
    for text, json_text in zip(tags.key_end[1:], tags.json_key_end[1:], strict=False):
        found = yield from source.match_after_space((text, json_text))
        if not found:
            raise Malformed("the end of a key is missing")
        if text != json_text:
            return ONLY_STRING if found == text else NO_STRING
    return ANY


def _read_value(source: TextSource, tags: _Tags, write: Write) -> Steps[None]:
    held = ""  # a line break that may be the template's

    def write_held(text: str) -> None:
        nonlocal held
        text, held = held + text, ""
        if tags.breaks_behind_value and text.endswith("\n"):
            text, held = text[:-1], "\n"
        if text:
            write(text)

    stops = Stops(tags.value_end[:1])
    while True:
        stop = yield from source.copy_until(stops, write_held)
        yield from _expect_all(source, tags.value_end[1:])
        if (yield from source.peek_any_after_space(tags.followers)):
            return
        write_held(stop)


def _expect_all(source: TextSource, parts: tuple[str, ...]) -> Steps[None]:
    for part in parts:
        yield from source.expect_after_space(part)

"""Calls whose arguments stand in tags of their own: strings raw, other values as JSON.

    <function=read><parameter=path>
    a.py
    </parameter></function>

In replies, a value whose schema says string is streamed; every other one is written when it is
complete, because only then it shows whether it is JSON. Raw text ends at its closing tag where the
next argument, or the end of the call, follows: text about tags may stand in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.call_texts import bare_pattern, read_surroundings, split_call_start
from milepost.chat.formats.grammar_writer import GrammarWriter, seq
from milepost.chat.formats.json_text import ArgumentWriter, quote
from milepost.chat.formats.parameter_types import permitted_types, to_json
from milepost.chat.formats.probe_texts import KEYS, NAMES, OTHER_VALUES, VALUES, CallTexts
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS
from milepost.chat.formats.schema_resolver import ANY
from milepost.chat.formats.tagged_arguments import ArgumentTags, write_tagged_arguments
from milepost.chat.formats.text_pieces import ends_with_tag, shared_end, shared_start
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource, Write

MAX_KEY_CHARS = 1024  # arbitrary
MIN_LONE_CHARS = 5  # "<function=" tells of a call by itself, "<" does not; arbitrary
ONLY_STRING = frozenset(["string"])
NO_STRING = frozenset(["null", "boolean", "number", "array", "object"])


@dataclass(frozen=True, slots=True)
class TaggedBody(CallBody):
    """Each argument stands in tags of its own.

    Qwen3-Coder, Qwen3.5, StepFun, Seed-OSS: `<function=NAME><parameter=KEY>VALUE</parameter>`;
    MiniMax: `<invoke name="NAME">`; GLM: `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`;
    DeepSeek V3.2: `<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>`, with
    `string="false"` before JSON.
    White space between tags is of no meaning; one line break next to a value belongs to the tags
    where the template writes one there.
    """

    name: ClassVar = "tagged_calls"

    name_start: str = ""  # "<function="
    name_end: str = ""  # ">\n"
    key_start: str = ""  # "<parameter="
    key_end: str = ""  # ">\n", all up to the value
    json_key_end: str = ""  # the same before values that are no strings, if it is different there
    value_end: str = ""  # "\n</parameter>\n"
    arguments_end: str = ""  # "</function>"

    @property
    def markers(self) -> tuple[str, ...]:
        """All tags."""
        names_and_keys = (self.name_start, self.name_end, self.key_start, self.key_end)
        return (*names_and_keys, self.json_key_end, self.value_end, self.arguments_end)

    @property
    def head(self) -> str:
        """What stands before the name."""
        return self.name_start.strip()

    @property
    def lone_head(self) -> str:
        """The same: some models forget the tag around a call, but not the one with its name."""
        return self.head if len(self.head) >= MIN_LONE_CHARS else ""

    @property
    def holds_call_end(self) -> bool:
        """Whether nothing but the marker after a call ends its arguments."""
        return not self.arguments_end.strip()

    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call."""
        source, writer = reading.source, reading.writer
        tags = _Tags.of(reading.form, self)
        yield from _expect_all(source, tags.name_start)
        name = yield from _read_name(source, tags)
        follower = yield from source.peek_any_after_space(tags.followers)
        if not follower:
            raise Malformed("neither an argument nor the end of the call follows the name")
        if not (tags.name_start or tags.name_end) and follower not in tags.key_start:
            writer.check_known(name)  # or any word between the markers would be a call
        writer.begin_call(name)
        arguments = ArgumentWriter(writer.arguments)
        while tags.key_start and follower == tags.key_start[0]:
            yield from _read_argument(source, tags, arguments, reading.parameters.get(name))
            follower = yield from source.peek_any_after_space(tags.followers)
        arguments.end()
        writer.end_call()
        yield from source.match_after_space((tags.arguments_end,))

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool."""
        end = self.arguments_end.strip() or form.call.end.strip()
        tags = ArgumentTags(self.key_start, self.key_end, self.json_key_end, self.value_end, end)
        return seq(
            writer.exact(self.name_start),
            writer.plain(tool.name),
            writer.exact(self.name_end.rstrip()),
            writer.space,
            write_tagged_arguments(tags, tool, writer),
        )

    def can_write_name(self, name: str) -> bool:
        """Names end at a tag."""
        end = (self.name_end.split() or ["<"])[0]
        return end not in name and "\n" not in name and name == name.strip()

    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call with one pair of tags for each argument."""
        pairs = "".join(
            self.key_start + key + self._key_end_before(value) + _as_text(value) + self.value_end
            for key, value in call.arguments.items()
        )
        return self.name_start + call.name + self.name_end + pairs + self.arguments_end

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if keys and values follow the name, with texts between them."""
        around = read_surroundings(texts, _find_call)
        gaps = _read_gaps(texts.one)
        place = _find_call(texts.one, 0)
        if around is None or gaps is None or place is None:
            return None
        name_to_key, key_end, value_to_key = gaps
        key_start = shared_end(name_to_key, value_to_key).lstrip()
        value_end = shared_start(value_to_key.removesuffix(key_start), texts.one[place[1] :])
        start, name_start = split_call_start(around.call.start)
        rest = around.call.end.removeprefix(value_end.strip()).strip()
        end = ends_with_tag(rest) if start else ""
        body = cls(
            name_start=name_start,
            name_end=name_to_key.removesuffix(key_start),
            key_start=key_start,
            key_end=key_end,
            json_key_end=_read_json_key_end(texts.other, key_end),
            value_end=value_end,
            arguments_end=rest.removesuffix(end).strip(),
        )
        several = texts.two is not None
        return ToolCallFormat(body, around.section, Affix(start, end), around.separator, several)

    def probe_pattern(self, number: int) -> str:
        """Return a pattern of a probed call."""
        values = dict(zip(KEYS[number], VALUES[number], strict=True))
        return bare_pattern(self.write_call_text(WrittenCall(NAMES[number], values, "")))

    def _key_end_before(self, value: object) -> str:
        return self.key_end if isinstance(value, str) else self.json_key_end or self.key_end


# --- reading -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tags:
    """A body's markers as they are looked for: cut at white space, which has no meaning there."""

    name_start: tuple[str, ...]
    name_end: tuple[str, ...]
    key_start: tuple[str, ...]
    key_end: tuple[str, ...]
    json_key_end: tuple[str, ...]
    value_end: tuple[str, ...]
    followers: tuple[str, ...]  # one of them stands after a value, and after the name
    arguments_end: str
    breaks_before_value: bool  # one line break there is the template's
    breaks_after_value: bool

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
            breaks_after_value=body.value_end.startswith("\n"),
        )


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
        if tags.breaks_after_value and text.endswith("\n"):
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


# --- history and probe -------------------------------------------------------------------


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else quote(value)


def _read_json_key_end(text: str, key_end: str) -> str:
    """Return what stands between key and value where the value is a number, if that differs."""
    found = text.partition(KEYS[0][0])[2].partition(str(OTHER_VALUES[0]))
    return found[0] if found[1] and found[0] != key_end else ""


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start, pos = text.find(NAMES[number]), 0
    if start < 0:
        return None
    pos = start
    for key, value in zip(KEYS[number], VALUES[number], strict=True):
        for wanted in (key, value):
            pos = text.find(wanted, pos)
            if pos < 0:
                return None
            pos += len(wanted)
    return start, pos


def _read_gaps(text: str) -> tuple[str, str, str] | None:
    """Return what stands between name and key, key and value, value and the next key."""
    (key, next_key), (value, _) = KEYS[0], VALUES[0]
    if _find_call(text, 0) is None:
        return None
    after_name = text[text.index(NAMES[0]) + len(NAMES[0]) :]
    name_to_key, _, after_key = after_name.partition(key)
    key_to_value, _, after_value = after_key.partition(value)
    return name_to_key, key_to_value, after_value.partition(next_key)[0]

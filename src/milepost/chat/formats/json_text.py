"""JSON text as it comes out of replies: written value by value, or copied as a model writes it.

What is copied comes out as valid JSON. Valid text passes as it is. Slips that models make are
mended: control characters (line breaks above all) and escapes that JSON does not have in strings,
and Python's words. Everything else is Malformed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from milepost.chat.formats.text_source import Malformed, OutOfText, Steps, TextSource, Write

MAX_DEPTH = 256  # of nested lists and objects; arbitrary, parsers of clients give up earlier
MAX_KEY_CHARS = 4096  # of a string that is read as a whole; arbitrary

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
WORD = re.compile(r"[-+.\w]+", re.ASCII)
SPACES = re.compile(r"[ \t\r\n]+")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
HEX = re.compile(r"[0-9a-fA-F]{4}")
JSON_WORDS = ("true", "false", "null")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
SIMPLE_ESCAPES = '"\\/bfnrt'
HIGH_SURROGATES = range(0xD800, 0xDC00)
LOW_SURROGATES = range(0xDC00, 0xE000)


class ArgumentWriter:
    """Writes the JSON text of arguments that a model has not written as JSON, value by value.

    It is one object, spaced as `json.dumps` does it.
    """

    def __init__(self, write: Write) -> None:
        self.write = write
        self._has_keys = False

    def key(self, key: str) -> None:
        """Begin the next argument; its value is written with `write`."""
        self.quoted_key(quote(key))

    def quoted_key(self, key: str) -> None:
        """Begin the next argument, whose name is written as JSON."""
        self.write(f"{', ' if self._has_keys else '{'}{key}: ")
        self._has_keys = True

    def string_piece(self, text: str) -> None:
        """Write a part of a string; its quotes are written with `write`."""
        self.write(escape(text))

    def end(self) -> None:
        """End the object."""
        self.write("}" if self._has_keys else "{}")


def quote(value: Any) -> str:
    """Return a value as JSON text; a text as a JSON string."""
    return json.dumps(value, ensure_ascii=False)


def escape(text: str) -> str:
    """Return a text as it stands in a JSON string, without quotes."""
    return quote(text)[1:-1]


def copy_json(source: TextSource, write: Write) -> Steps[None]:
    """Copy one JSON value, which begins with the next character."""
    closers: list[str] = []
    while True:
        if closers:
            yield from _copy_to_value(source, write, closers[-1])
        if (yield from _copy_start(source, write, closers)):
            continue
        yield from _copy_ends(source, write, closers)
        if not closers:
            return


def copy_arguments(source: TextSource, write: Write) -> Steps[None]:
    """Copy the value that stands for the arguments of a call: mostly an object.

    A string holds the JSON text of the arguments; null stands for none.
    """
    char = yield from source.peek_after_space()
    if char == '"':
        yield from copy_embedded(source, write)
    elif char == "n":
        yield from copy_json(source, _nowhere)
        write("{}")
    else:
        yield from copy_json(source, write)


def copy_embedded(source: TextSource, write: Write) -> Steps[None]:
    """Copy the JSON value whose text is in a JSON string; an empty one stands for no arguments."""
    inner = TextSource()
    steps = _copy_whole(inner, write)

    def write_plain(text: str) -> None:
        inner.feed(text)
        try:
            _advance(steps)
        except Malformed:
            source.back(len(inner.rest()))  # what was not looked at is still to be read
            raise

    yield from source.take(1)
    while True:
        yield from source.copy_while(PLAIN, write_plain)
        char = yield from _decode_next(source)
        if not char:
            break
        inner.feed(char)
        _advance(steps)
    inner.end()
    _advance(steps)


def read_string(source: TextSource) -> Steps[str]:
    """Return the text of the JSON string that follows, white space aside."""
    yield from source.expect_after_space('"')
    pieces: list[str] = []
    num_chars = 0

    def write(text: str) -> None:
        nonlocal num_chars
        num_chars += len(text)
        if num_chars > MAX_KEY_CHARS:
            raise Malformed("a name is too long")
        pieces.append(text)

    yield from decode_string(source, write)
    return "".join(pieces)


def decode_string(source: TextSource, write: Write) -> Steps[None]:
    """Write what a JSON string stands for, whose first quote has been read."""
    while True:
        yield from source.copy_while(PLAIN, write)
        char = yield from _decode_next(source)
        if not char:
            return
        write(char)


def copy_string(source: TextSource, write: Write) -> Steps[None]:
    """Copy a JSON string, quotes included."""
    write((yield from source.take(1)))
    while True:
        yield from source.copy_while(PLAIN, write)
        char = yield from source.take(1)
        if char == '"':
            write(char)
            return
        write((yield from _copy_escape(source)) if char == "\\" else escape(char))


def _copy_whole(source: TextSource, write: Write) -> Steps[None]:
    """Copy all of a text, which is one JSON value; an empty object where there is none."""
    try:
        yield from source.skip_space()
    except OutOfText:
        write("{}")
        return
    yield from copy_json(source, write)
    try:
        yield from source.skip_space()
    except OutOfText:
        return
    raise Malformed("the arguments go on after their end")


def _advance(steps: Steps[None]) -> None:
    try:
        next(steps, None)
    except OutOfText:
        raise Malformed("the arguments are no JSON") from None


def _copy_to_value(source: TextSource, write: Write, closer: str) -> Steps[None]:
    """Copy what stands before a value: white space, and in an object its key."""
    yield from source.copy_while(SPACES, write)
    if closer == "]":
        return
    if (yield from source.peek()) != '"':
        raise Malformed("a key is missing")
    yield from copy_string(source, write)
    yield from source.copy_while(SPACES, write)
    if (yield from source.peek()) != ":":
        raise Malformed("':' is missing after a key")
    write((yield from source.take(1)))
    yield from source.copy_while(SPACES, write)


def _copy_start(source: TextSource, write: Write, closers: list[str]) -> Steps[bool]:
    """Copy a value, or the start of one; return whether it has begun only."""
    char = yield from source.peek()
    if char in "{[":
        if len(closers) == MAX_DEPTH:
            raise Malformed(f"lists and objects are nested more than {MAX_DEPTH} deep")
        write((yield from source.take(1)))
        closer = "}" if char == "{" else "]"
        yield from source.copy_while(SPACES, write)
        if (yield from source.peek()) == closer:
            write((yield from source.take(1)))
            return False
        closers.append(closer)
        return True
    if char == '"':
        yield from copy_string(source, write)
    else:
        yield from _copy_word(source, write)
    return False


def _copy_ends(source: TextSource, write: Write, closers: list[str]) -> Steps[None]:
    """Copy what stands after a value: ends of lists and objects, and a comma."""
    while closers:
        yield from source.copy_while(SPACES, write)
        char = yield from source.peek()
        if char != closers[-1] and char != ",":
            raise Malformed(f"',' or {closers[-1]!r} is missing")
        write((yield from source.take(1)))
        if char == ",":
            return
        closers.pop()


def _copy_word(source: TextSource, write: Write) -> Steps[None]:
    word = yield from source.read_while(WORD)
    word = PYTHON_WORDS.get(word, word)
    if word not in JSON_WORDS and not NUMBER.fullmatch(word):
        raise Malformed("a value is no JSON")
    write(word)


def _copy_escape(source: TextSource) -> Steps[str]:
    r"""Return an escape, after its backslash, as valid JSON: `\d` becomes `\\d`."""
    char = yield from source.take(1)
    if char in SIMPLE_ESCAPES:
        return "\\" + char
    if char == "'":
        return char
    if char != "u":
        return "\\\\" + escape(char)
    digits = yield from _read_hex(source)
    return f"\\u{digits}" if HEX.fullmatch(digits) else "\\\\u" + escape(digits)


def _decode_next(source: TextSource) -> Steps[str]:
    """Return what the next character or escape stands for; "" for the quote at the end."""
    char = yield from source.take(1)
    if char == "\\":
        return (yield from _decode_escape(source))
    return "" if char == '"' else char


def _decode_escape(source: TextSource) -> Steps[str]:
    char = yield from source.take(1)
    if char == "u":
        digits = yield from _read_hex(source)
        if HEX.fullmatch(digits):
            return (yield from _decode_unit(source, int(digits, 16)))
        return "\\u" + digits
    if char in SIMPLE_ESCAPES:
        decoded: str = json.loads(f'"\\{char}"')
        return decoded
    return char if char == "'" else "\\" + char


def _decode_unit(source: TextSource, unit: int) -> Steps[str]:
    """Return the character of a UTF-16 unit and perhaps another; U+FFFD for half a character."""
    if unit in HIGH_SURROGATES and (yield from _has_escaped_unit(source)):
        digits = (yield from source.peek_text(6))[2:]
        low = int(digits, 16) if HEX.fullmatch(digits) else 0
        if low in LOW_SURROGATES:
            yield from source.take(6)
            return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
    return "\ufffd" if unit in HIGH_SURROGATES or unit in LOW_SURROGATES else chr(unit)


def _has_escaped_unit(source: TextSource) -> Steps[bool]:
    if (yield from source.peek()) != "\\":
        return False
    return (yield from source.peek_text(2)) == "\\u"


def _read_hex(source: TextSource) -> Steps[str]:
    """Return up to four hexadecimal digits."""
    digits = ""
    while len(digits) < 4 and (yield from source.peek()) in "0123456789abcdefABCDEF":
        digits += yield from source.take(1)
    return digits


def _nowhere(text: str) -> None:
    """Write nothing."""

"""Reads values as Python writes them, and writes them as JSON.

{'x': (True, None), "lines": [1, 0x20]}
"""

from __future__ import annotations

import ast
import json
import re

from milepost.chat.formats.json_text import HIGH_SURROGATES, LOW_SURROGATES, escape
from milepost.chat.formats.text_source import Malformed, OutOfText, Steps, Stops, TextSource, Write

MAX_DEPTH = 32  # of nested values; arbitrary
WORD = re.compile(r"[\w.+\-]+")
NUMBER = re.compile(r"[-+]?[0-9._]+([eE][-+]?[0-9]+)?|[-+]?0[xob][0-9a-fA-F]+")
ESCAPED_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}")
HEX_DIGITS = re.compile(r"[0-9a-fA-F]+")
WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
ESCAPES = {
    "\n": "",
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
NUM_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
QUOTES = ('"""', "'''", '"', "'")


def copy_literal(source: TextSource, write: Write, depth: int = MAX_DEPTH) -> Steps[None]:
    """Write a value, which begins after white space, as JSON; lists may nest `depth` deep."""
    if depth == 0:
        raise Malformed(f"values are nested more than {MAX_DEPTH} deep")
    opener = yield from source.match_after_space((*QUOTES, "[", "(", "{"))
    if opener in QUOTES and opener:
        write('"')
        yield from _copy_string(source, write, opener)
        write('"')
    elif opener == "{":
        yield from _copy_items(source, write, "}", depth)
    elif opener:
        yield from _copy_items(source, write, "]" if opener == "[" else ")", depth)
    else:
        yield from source.skip_space()
        write(_word_to_json((yield from source.read_while(WORD))))


def literal_to_json(text: str) -> str:
    """Return a Python literal as JSON text; any other text as it is."""
    source = TextSource()
    source.feed(f"{text} ,")
    source.end()
    pieces: list[str] = []
    try:
        for _ in copy_literal(source, pieces.append):
            pass
    except (Malformed, OutOfText):
        return text
    return "".join(pieces) if source.rest().strip() == "," else text


def _copy_items(source: TextSource, write: Write, closer: str, depth: int) -> Steps[None]:
    write("{" if closer == "}" else "[")
    gap = ""
    while not (yield from source.match_after_space((closer,))):
        write(gap)
        gap = ", "
        if closer == "}":
            yield from copy_key(source, write)
            write(": ")
        yield from copy_literal(source, write, depth - 1)
        if (yield from source.peek_after_space()) != closer:
            yield from source.expect_after_space(",")
    write("}" if closer == "}" else "]")


def copy_key(source: TextSource, write: Write) -> Steps[None]:
    """Copy a key of a dictionary, with quotes, and read the colon after it."""
    quote = yield from source.match_after_space(QUOTES)
    if not quote:
        raise Malformed("a key is no string")
    write('"')
    yield from _copy_string(source, write, quote)
    write('"')
    yield from source.expect_after_space(":")


def _copy_string(source: TextSource, write: Write, quote: str) -> Steps[None]:
    """Copy a string up to its closing quote, without either quote."""
    stops = Stops((quote, "\\"))

    def write_escaped(text: str) -> None:
        write(escape(text))

    while (yield from source.copy_until(stops, write_escaped)) == "\\":
        write_escaped((yield from _decode_escape(source)))


def _decode_escape(source: TextSource) -> Steps[str]:
    char = yield from source.take(1)
    num_digits = NUM_HEX_DIGITS.get(char)
    if num_digits is None:
        return ESCAPES.get(char, "\\" + char)
    digits = yield from source.peek_text(num_digits)
    if not HEX_DIGITS.fullmatch(digits):
        return "\\" + char
    yield from source.take(num_digits)
    code = int(digits, 16)
    if char == "u" and code in HIGH_SURROGATES:
        second = yield from source.peek_text(6)
        low = int(second[2:], 16) if ESCAPED_UNIT.fullmatch(second) else 0
        if low in LOW_SURROGATES:
            yield from source.take(6)
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    is_character = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if is_character else "\ufffd"


def _word_to_json(word: str) -> str:
    if word in WORDS:
        return WORDS[word]
    if NUMBER.fullmatch(word):
        try:
            return json.dumps(ast.literal_eval(word), allow_nan=False)
        except (ValueError, SyntaxError, OverflowError):
            pass
    raise Malformed("a value is no literal")

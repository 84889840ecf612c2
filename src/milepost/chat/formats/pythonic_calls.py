"""Reads calls as Python writes them, and writes their arguments as JSON.

[read(path="a.py", lines=[1, 20]), look()]
"""

from __future__ import annotations

import ast
import json
import re

from milepost.chat.formats.argument_writer import ArgumentWriter
from milepost.chat.formats.json_calls import read_json_calls, read_json_list
from milepost.chat.formats.json_text import escape
from milepost.chat.formats.reply_format import JsonBody
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Malformed, OutOfText, Steps, Stops, TextSource, Write

MAX_DEPTH = 32  # of nested values; arbitrary
NAME = re.compile(r"[\w.\-/]+")
WORD = re.compile(r"[\w.+\-]+")
NUMBER = re.compile(r"[-+]?[0-9._]+([eE][-+]?[0-9]+)?|[-+]?0[xob][0-9a-fA-F]+")
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


def read_pythonic_calls(source: TextSource, writer: ReplyWriter) -> Steps[None]:
    """Read one call or a list of calls; models of these families write JSON sometimes."""
    is_list = yield from source.match_after_space(("[",))
    if (yield from source.peek_after_space()) == "{":
        read_json = read_json_list if is_list else read_json_calls
        yield from read_json(source, JsonBody(), writer)
        return
    if is_list and (yield from source.match_after_space(("]",))):
        return
    while True:
        yield from _read_call(source, writer)
        if not is_list or (yield from source.match_after_space(("]",))):
            return
        yield from source.expect_after_space(",")


def literal_to_json(text: str) -> str:
    """Return a Python literal as JSON text; any other text as it is."""
    source = TextSource()
    source.feed(f"{text} ,")
    source.end()
    pieces: list[str] = []
    try:
        for _ in _copy_value(source, pieces.append, MAX_DEPTH):
            pass
    except (Malformed, OutOfText):
        return text
    return "".join(pieces) if source.rest().strip() == "," else text


def _read_call(source: TextSource, writer: ReplyWriter) -> Steps[None]:
    yield from source.skip_space()
    name = yield from source.read_while(NAME)
    yield from source.expect_after_space("(")
    is_closed = yield from source.match_after_space((")",))
    if not is_closed:
        key = yield from _read_key(source)
    writer.begin_call(name)
    arguments = ArgumentWriter(writer.arguments)
    while not is_closed:
        arguments.key(key)
        yield from _copy_value(source, arguments.write, MAX_DEPTH)
        is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            yield from source.expect_after_space(",")
            is_closed = yield from source.match_after_space((")",))
        if not is_closed:
            key = yield from _read_key(source)
    arguments.end()
    writer.end_call()


def _read_key(source: TextSource) -> Steps[str]:
    yield from source.skip_space()
    key = yield from source.read_while(NAME)
    if not key:
        raise Malformed("the name of an argument is missing")
    yield from source.expect_after_space("=")
    return key


def _copy_value(source: TextSource, write: Write, depth: int) -> Steps[None]:
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


def _copy_items(source: TextSource, write: Write, closer: str, depth: int) -> Steps[None]:
    write("{" if closer == "}" else "[")
    gap = ""
    while not (yield from source.match_after_space((closer,))):
        write(gap)
        gap = ", "
        if closer == "}":
            yield from _copy_key(source, write)
        yield from _copy_value(source, write, depth - 1)
        if (yield from source.peek_after_space()) != closer:
            yield from source.expect_after_space(",")
    write("}" if closer == "}" else "]")


def _copy_key(source: TextSource, write: Write) -> Steps[None]:
    quote = yield from source.match_after_space(QUOTES)
    if not quote:
        raise Malformed("a key is no string")
    write('"')
    yield from _copy_string(source, write, quote)
    write('": ')
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

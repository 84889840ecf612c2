"""Recognises calls as Gemma 4 writes them: `call:NAME{key:<|"|>text<|"|>,other:1}`."""

from __future__ import annotations

from milepost.chat.formats.call_texts import CallTexts, read_surroundings
from milepost.chat.formats.probe_texts import KEYS, NAMES, VALUES
from milepost.chat.formats.reply_format import Affix, BracedBody, ToolCallFormat
from milepost.chat.formats.text_pieces import first_tag


def recognise_braced_calls(texts: CallTexts) -> ToolCallFormat | None:
    """Return the format if keys stand bare in braces behind the name."""
    quote = _read_quote(texts.one)
    around = read_surroundings(texts, _find_call)
    if quote is None or around is None:
        return None
    tag = first_tag(around.opening)
    name_start = around.opening.removeprefix(tag).lstrip()
    return ToolCallFormat(
        BracedBody(name_start, quote),
        call=Affix(tag, around.closing),
        separator=around.separator,
        takes_several=texts.two is not None,
    )


def _read_quote(text: str) -> str | None:
    before, _, rest = text.partition(f"{NAMES[0]}{{{KEYS[0][0]}:")
    quote, value, rest = rest.partition(VALUES[0][0])
    if not before or not value or not quote.strip() or quote.strip() == '"':
        return None
    return quote if rest.startswith(quote) else None


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(NAMES[number] + "{")
    last_value = text.find(VALUES[number][1], start)
    end = text.find("}", last_value)
    return (start, end + 1) if min(start, last_value, end) >= 0 else None

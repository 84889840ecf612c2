"""Images and audio among the parts of messages, and the markers that stand for them in text.

Templates know nothing of media here: each part becomes a marker, a few private-use characters,
among the text parts of its message, and goes through the template like a word. In the rendered
prompt the markers show where the media stand. What a part stands for is found by
`milepost.media`; this module only names it.

    parts    text "before", image_url …, text "behind"
    content  before▮0000behind
             ^ no newline next to a marker, as in llama-server

Text of clients that happens to hold the first character of markers keeps its meaning: markers of
such a conversation begin with another one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.errors import InvalidRequest

MediaKind = Literal["image", "audio"]

# Private-use characters behind those of `control_texts` and `message_spans`: sixteen digits, then
# what markers may begin with.
FIRST_DIGIT = 0xF8E1
FIRST_OPENING = 0xF8F1
LAST_OPENING = 0xF8FE
DIGITS = "".join(chr(FIRST_DIGIT + i) for i in range(16))
NUM_DIGITS = 4  # 65,536 media
MARKER_CHARS = 1 + NUM_DIGITS
MAX_MEDIA = 16**NUM_DIGITS
CHARS = {ord(f"{i:x}"): digit for i, digit in enumerate(DIGITS)}
VALUES = {ord(digit): f"{i:x}" for i, digit in enumerate(DIGITS)}

# Type of a part -> kind, and the key of what it holds.
PART_KINDS: Mapping[str, tuple[MediaKind, str]] = {
    "image_url": ("image", "image_url"),
    "input_image": ("image", "image_url"),
    "input_audio": ("audio", "input_audio"),
    "audio_url": ("audio", "audio_url"),
}
DIGEST_BYTES = 16
MAX_SHOWN_CHARS = 80  # of a bad value in an error message; arbitrary


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image or audio of a request."""

    kind: MediaKind
    where: str  # in the request, such as "messages[2].content[1]"
    source: str = field(repr=False)  # a data, http(s) or file URL, or base64 text

    @property
    def digest(self) -> bytes:
        """Tells it from other media, as far as the request says; made anew each time."""
        head = f"{self.kind}\0".encode()
        data = self.source.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(head + data, digest_size=DIGEST_BYTES).digest()


class MediaCollector:
    """Takes the media parts of a conversation, in their order, and gives out their markers."""

    def __init__(self, opening: str) -> None:
        self.opening = opening
        self.parts: list[MediaPart] = []

    def add(self, part: Mapping[str, Any], where: str) -> str:
        """Return the marker for a part whose type is in `PART_KINDS`.

        Raises InvalidRequest when the part holds no source.
        """
        if len(self.parts) == MAX_MEDIA:
            raise _invalid(f"{where} is one of more than {MAX_MEDIA} images; send fewer")
        kind, key = PART_KINDS[part["type"]]
        self.parts.append(MediaPart(kind, where, _read_source(part, key, where)))
        return self.opening + f"{len(self.parts) - 1:0{NUM_DIGITS}x}".translate(CHARS)


def is_media(part: Mapping[str, Any]) -> bool:
    """Say whether a checked part is an image or audio."""
    return part["type"] in PART_KINDS


def part_ends(parts: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return where each of the checked parts of a message ends in its content."""
    ends: list[int] = []
    num_chars = 0
    was_media = False
    for part in parts:
        media = is_media(part)
        if num_chars and not media and not was_media:
            num_chars += 1  # text parts are joined by newlines
        num_chars += MARKER_CHARS if media else len(part["text"])
        was_media = media
        ends.append(num_chars)
    return ends


def choose_opening(texts: object) -> str:
    """Return a character that is nowhere in the texts of a request, not even as a JSON escape."""
    text = json.dumps(texts, ensure_ascii=False, default=str)
    for code in range(FIRST_OPENING, LAST_OPENING + 1):
        if chr(code) not in text and _escape(code) not in text:
            return chr(code)
    raise _invalid(
        "the texts of the request hold all of the private-use characters U+F8F1 to U+F8FE, of "
        "which one is needed to mark the places of images; leave one out"
    )


def write_out_markers(text: str, opening: str) -> str:
    """Return a rendered text with those markers written out that a template has escaped.

    As its `tojson` may, if it asks for ASCII.
    """
    escaped = _escape(ord(opening))
    if escaped not in text:
        return text
    digits = "|".join(re.escape(_escape(ord(digit))) for digit in DIGITS)
    pattern = f"{re.escape(escaped)}(?:{digits}){{{NUM_DIGITS}}}"
    return re.sub(pattern, lambda match: str(json.loads(f'"{match[0]}"')), text)


def find_markers(text: str, opening: str) -> tuple[tuple[int, ...], list[int]]:
    """Return the offsets of the markers in a text, and the numbers of their media."""
    offsets: list[int] = []
    numbers: list[int] = []
    for match in re.finditer(f"{opening}([{DIGITS}]{{{NUM_DIGITS}}})", text):
        offsets.append(match.start())
        numbers.append(int(match[1].translate(VALUES), 16))
    return tuple(offsets), numbers


def _read_source(part: Mapping[str, Any], key: str, where: str) -> str:
    value = part.get(key)
    if isinstance(value, Mapping):  # {"url": …, "detail": …} or {"data": …, "format": …}
        names = ("data", "url") if key == "input_audio" else ("url",)
        name = next((name for name in names if value.get(name) is not None), names[0])
        where, value = f"{where}.{key}.{name}", value.get(name)
    else:
        where = f"{where}.{key}"
    if not isinstance(value, str):
        raise _invalid(f"{where} must be a URL or base64 text, not {_shown(value)}")
    if not value:
        raise _invalid(f"{where} is empty; send a data URL, or leave the part out")
    return value


def _escape(code: int) -> str:
    return f"\\u{code:04x}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages")

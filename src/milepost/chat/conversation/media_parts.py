"""Images and audio among the parts of messages, and the markers that stand for them in text.

Templates know nothing of media here: each part becomes a marker (`sentinels`) among the text parts
of its message, and goes through the template like a word. In the rendered prompt the markers show
where the media stand. What a part stands for is found by `milepost.media`; this module only names
it.

    parts    text "before", image_url …, text "after"
    content  before▮00000after
             ^ no newline next to a marker, as in llama-server
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.chat.conversation.sentinels import (
    FIRST_SENTINEL,
    LAST_SENTINEL,
    MARKER_CHARS,
    choose_sentinel,
    write_marker,
)
from milepost.errors import InvalidRequest

MediaKind = Literal["image", "audio"]

MAX_MEDIA = 1 << 16  # of a request; arbitrary
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

    def __init__(self, sentinel: str) -> None:
        self.sentinel = sentinel
        self.parts: list[MediaPart] = []

    def add(self, part: Mapping[str, Any], where: str) -> str:
        """Return the marker for a part whose type is in `PART_KINDS`.

        Raises InvalidRequest when the part holds no source.
        """
        if len(self.parts) == MAX_MEDIA:
            raise _invalid(f"{where} is one of more than {MAX_MEDIA} images; send fewer")
        kind, key = PART_KINDS[part["type"]]
        self.parts.append(MediaPart(kind, where, _read_source(part, key, where)))
        return write_marker(self.sentinel, len(self.parts) - 1)


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


def choose_media_sentinel(*texts: object) -> str:
    """Return a sentinel for the markers of a request with these texts.

    Raises InvalidRequest when the texts hold all there are.
    """
    sentinel = choose_sentinel(*texts)
    if sentinel is None:
        raise _invalid(
            f"the texts of the request hold all of the private-use characters "
            f"U+{FIRST_SENTINEL:X} to U+{LAST_SENTINEL:X}, of which one is needed to mark the "
            "places of images; leave one out"
        )
    return sentinel


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


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages")

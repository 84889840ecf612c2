"""Images and audio among the parts of messages, and the markers that stand for them in text.

Templates know nothing of media here: each part becomes a marker (`sentinels`) among the text parts
of its message, and goes through the template like a word. In the rendered prompt the markers show
where the media stand. What a part stands for is found by `milepost.media`; this module only names
it.

    parts    text "before", an image, text "after"
    content  before▮00000after
             ^ no newline next to a marker, as in llama-server
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from milepost.chat.conversation.sentinels import (
    FIRST_SENTINEL,
    LAST_SENTINEL,
    choose_sentinel,
    write_marker,
)
from milepost.errors import InvalidRequest
from milepost.kinds import MediaKind

MAX_MEDIA = 1 << 16  # of a request; arbitrary
DIGEST_BYTES = 16


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


def join_parts(
    parts: Iterable[str | MediaPart], sentinel: str, first_number: int
) -> tuple[str, list[int]]:
    """Return the content that the parts of a message make, and where each of them ends in it.

    Texts are joined by newlines, but not to the markers of media, which are numbered from
    `first_number` on. Raises InvalidRequest for one media item too many.
    """
    text = ""
    ends: list[int] = []
    number = first_number
    was_media = False
    for part in parts:
        if isinstance(part, str):
            text += f"\n{part}" if text and not was_media else part
        else:
            if number == MAX_MEDIA:
                raise _invalid(f"{part.where} is one of more than {MAX_MEDIA} images; send fewer")
            text += write_marker(sentinel, number)
            number += 1
        was_media = isinstance(part, MediaPart)
        ends.append(len(text))
    return text, ends


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


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages")

"""Tokens that stand for images and audio in the prompts of the oracle.

What an image becomes is known to the server only; the oracle needs no more than that equal images
are equal tokens, and how many. So each image is a run of negative numbers made from a hash of its
source, as long as the server says that it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Part = dict[str, Any]
Tokens = npt.NDArray[np.int32]  # of shape (n,)

MEDIA_PARTS = ("image_url", "input_audio")
HASH_VALUES = 1 << 30  # with the numbers of its tokens, one image stays inside of int32


def media_parts(messages: Iterable[dict[str, Any]]) -> Iterator[Part]:
    """Yield the images and audio of a conversation in their order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") in MEDIA_PARTS:
                yield part


def stand_in(part: Part, num_tokens: int) -> Tokens:
    """Return the tokens of the oracle for an image."""
    digest = hashlib.sha256(repr(part[part["type"]]).encode()).digest()
    first = int.from_bytes(digest[:4], "little") % HASH_VALUES
    return -1 - (first + np.arange(num_tokens, dtype=np.int32))


def put_between(texts: Sequence[Tokens], media: Sequence[Tokens]) -> Tokens:
    """Return one prompt: text, media, text, …, text."""
    pieces: list[Tokens] = [texts[0]]
    for image, text in zip(media, texts[1:], strict=True):
        pieces += (image, text)
    return np.concatenate(pieces)

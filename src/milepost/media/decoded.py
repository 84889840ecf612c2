"""Decoded media, and the name that is the same for the same content.

    key = SHA-256 of   "image"  width: u32  height: u32        RGB8 rows
                       "audio"  rate: u32   num_samples: u64   float32 samples
                       (numbers little-endian)

The key is of what the model will see, not of a file: a screenshot that is saved again, or sent
as another format without loss, keeps its key, and with it all that was computed after it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from milepost.kinds import MediaKind


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """What identifies a decoded image or audio, and its size."""

    kind: MediaKind
    key: bytes  # 32 bytes
    width: int = 0  # pixels, of an image
    height: int = 0
    num_samples: int = 0  # of audio, mono


@dataclass(frozen=True, slots=True)
class DecodedMedia:
    """A decoded image (RGB8 rows from the top) or audio (mono float32 samples)."""

    facts: MediaFacts
    data: bytes = field(repr=False)


def name_image(rgb: bytes, width: int, height: int) -> DecodedMedia:
    """Return an image with its key."""
    assert len(rgb) == 3 * width * height
    head = b"image" + struct.pack("<II", width, height)
    return DecodedMedia(MediaFacts("image", _digest(head, rgb), width, height), rgb)


def name_audio(samples: bytes, rate: int) -> DecodedMedia:
    """Return audio with its key; `rate` is in samples per second."""
    num_samples = len(samples) // 4
    head = b"audio" + struct.pack("<IQ", rate, num_samples)
    facts = MediaFacts("audio", _digest(head, samples), num_samples=num_samples)
    return DecodedMedia(facts, samples)


def _digest(head: bytes, data: bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(data)  # releases the GIL
    return digest.digest()

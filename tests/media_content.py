"""Images and audio for tests: random content, and the reference that goes with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from milepost.libllama.media import MediaSize
from milepost.protocol.messages import MediaRef


@dataclass(frozen=True, slots=True)
class Image:
    """RGB pixels, row by row."""

    width: int
    height: int
    data: bytes

    def ref(self, pos: int = 0) -> MediaRef:
        """Return what a request says of it."""
        head = f"image {self.width} {self.height} ".encode()
        return MediaRef(
            pos=pos,
            kind="image",
            key=hashlib.sha256(head + self.data).digest(),
            width=self.width,
            height=self.height,
        )

    @property
    def size(self) -> MediaSize:
        """All that its layout depends on."""
        return MediaSize("image", self.width, self.height)

    def cut_off(self) -> Image:
        """Return it with its last row missing, under another key."""
        return replace(self, data=self.data[: -3 * self.width])


def make_image(seed: int, width: int = 96, height: int = 64) -> Image:
    """Return an image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image(width, height, pixels.tobytes())


@dataclass(frozen=True, slots=True)
class Sound:
    """Mono samples, float32."""

    num_samples: int
    data: bytes

    def ref(self, pos: int = 0) -> MediaRef:
        """Return what a request says of it."""
        key = hashlib.sha256(b"audio " + self.data).digest()
        return MediaRef(pos=pos, kind="audio", key=key, num_samples=self.num_samples)

    @property
    def size(self) -> MediaSize:
        """All that its layout depends on."""
        return MediaSize("audio", num_samples=self.num_samples)


Content = Image | Sound


def make_sound(seed: int, num_samples: int = 8000) -> Sound:
    """Return random noise."""
    noise = np.random.default_rng(seed).standard_normal(num_samples, np.float32)
    return Sound(num_samples, (noise * np.float32(0.1)).tobytes())

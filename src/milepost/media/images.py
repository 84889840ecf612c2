"""Decodes image files into RGB rows, as a viewer would show them on white paper.

The files are untrusted: what is checked before decoding is the format, by its content and not by
what the request calls it, the number of pixels, and how often a JPEG paints them. Everything that
the decoder then makes of a damaged file is an InvalidRequest.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from milepost.errors import InvalidRequest
from milepost.media.decoded import DecodedMedia, name_image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ORIENTATION = 0x0112  # EXIF tag
TURNS = {  # its values -> how to get an upright image
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# A progressive JPEG is painted once per scan. Cameras and browsers write about ten; thousands, of
# a few bytes each, would keep the decoder busy for hours.
START_OF_SCAN = b"\xff\xda"
MAX_SCANS = 200  # arbitrary
STRIP_PIXELS = 1 << 20

# Pillow's own limit is one for the process, and warns where ours refuses.
Image.MAX_IMAGE_PIXELS = None


def decode_image(data: bytes, max_pixels: int, where: str) -> DecodedMedia:
    """Return the first frame of an image file, turned upright, transparent parts white.

    Raises InvalidRequest, which begins with `where`, for anything that is no such image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image, data, max_pixels, where)
            upright = _turn_upright(image)
            rgb = _on_white(upright)
            return name_image(rgb.tobytes(), *rgb.size)
    except InvalidRequest:
        raise
    # An edge to foreign code: parsers of files raise whatever Python can.
    except Exception as error:
        raise InvalidRequest(
            f"{where} cannot be decoded{_reason(error)}; send a whole PNG, JPEG, WebP, GIF or BMP",
            param="messages",
        ) from error


def _check_size(image: Image.Image, data: bytes, max_pixels: int, where: str) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise InvalidRequest(
            f"{where} has {width} x {height} pixels, over the limit of {max_pixels}; send it "
            "smaller, or start the server with a larger --media-max-pixels",
            param="messages",
        )
    num_scans = data.count(START_OF_SCAN) if image.format in ("JPEG", "MPO") else 0
    if num_scans > MAX_SCANS:
        raise InvalidRequest(
            f"{where} is a JPEG of {num_scans} scans, over the limit of {MAX_SCANS}; save it anew",
            param="messages",
        )


def _turn_upright(image: Image.Image) -> Image.Image:
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # an edge to foreign code: damaged EXIF of a sound image
        turn = None
    return image if turn is None else image.transpose(turn)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # 16 bits of grey, which Pillow would clip to 8
        grey = np.asarray(image, dtype=np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    width, height = image.size
    flat = Image.new("RGB", image.size, "white")
    num_rows = max(STRIP_PIXELS // width, 1)
    for top in range(0, height, num_rows):  # not all at once: that is a copy of eight bytes a pixel
        box = (0, top, width, min(top + num_rows, height))
        strip = image.crop(box).convert("RGBA")
        flat.paste(strip, box, strip)  # as far as it is opaque
    return flat


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError) or not str(error):
        return ""
    return f" ({str(error)[:100]})"

"""Images come out as a viewer would show them; files that are none get a sentence."""

from __future__ import annotations

import random

import pytest
from PIL import Image
from tests.unit.media.pictures import picture, png_of_header, saved

from milepost.errors import InvalidRequest
from milepost.media.images import ORIENTATION, decode_image

RED, BLUE, WHITE = b"\xff\x00\x00", b"\x00\x00\xff", b"\xff\xff\xff"
WHERE = "messages[2].content[1]"
MAX_PIXELS = 1_000_000


def decode(data: bytes, max_pixels: int = MAX_PIXELS) -> tuple[int, int, bytes]:
    """Return width, height and pixels of an image file."""
    decoded = decode_image(data, max_pixels, WHERE)
    return decoded.facts.width, decoded.facts.height, decoded.data


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("GIF", {}), ("WEBP", {"lossless": True})],
)
def test_formats_without_loss_give_the_same_pixels_and_key(
    kind: str, options: dict[str, bool]
) -> None:
    decoded = decode_image(saved(picture(), kind, **options), MAX_PIXELS, WHERE)
    assert decoded.data == 2 * (2 * RED + 2 * BLUE)
    assert decoded.facts == decode_image(saved(picture()), MAX_PIXELS, WHERE).facts


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_any_mode_becomes_rgb(mode: str) -> None:
    image = Image.new(mode, (3, 2)) if mode == "I;16" else picture(mode, (3, 2))
    kind = "JPEG" if mode == "CMYK" else "PNG"
    width, height, pixels = decode(saved(image, kind))
    assert (width, height, len(pixels)) == (3, 2, 18)


def test_sixteen_bits_of_grey_are_scaled() -> None:
    image = Image.new("I;16", (1, 1), 0x80FF)
    assert decode(saved(image)) == (1, 1, b"\x80\x80\x80")


@pytest.mark.parametrize(
    ("orientation", "size", "first", "last"),
    [
        (1, (4, 2), RED, BLUE),
        (2, (4, 2), BLUE, RED),
        (3, (4, 2), BLUE, RED),
        (4, (4, 2), RED, BLUE),
        (5, (2, 4), RED, BLUE),
        (6, (2, 4), RED, BLUE),
        (7, (2, 4), BLUE, RED),
        (8, (2, 4), BLUE, RED),
    ],
)
def test_photos_are_turned_upright(
    orientation: int, size: tuple[int, int], first: bytes, last: bytes
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    width, height, pixels = decode(saved(picture(), "PNG", exif=exif))
    assert (width, height) == size
    assert (pixels[:3], pixels[-3:]) == (first, last)


def test_damaged_exif_does_not_matter() -> None:
    data = saved(picture(), "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert decode(data)[:2] == (4, 2)


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (2, 1), color) for color in ("red", "blue", "white")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data) == (2, 1, 2 * RED)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_what_is_transparent_is_white(kind: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    options = {"lossless": True} if kind == "WEBP" else {}
    assert decode(saved(image, kind, **options)) == (2, 1, 2 * WHITE)


def test_what_is_half_transparent_is_half_white_in_every_strip() -> None:
    image = Image.new("RGBA", (1024, 2100), (0, 0, 0, 0))
    image.paste((255, 0, 0, 128), (0, 1000, 1024, 2100))
    _, _, pixels = decode(saved(image), max_pixels=3_000_000)
    row = 3 * 1024
    assert pixels[: 1000 * row] == bytes([255]) * (1000 * row)
    assert pixels[1000 * row :] == bytes([255, 127, 127]) * (1100 * 1024)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 10), (10, 20_000)])
def test_extreme_sizes_work(size: tuple[int, int]) -> None:
    assert decode(saved(Image.new("RGB", size)))[:2] == size


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(png_of_header(2**31 - 1, 2**31 - 1))
    said = str(raised.value)
    assert said.startswith(f"{WHERE} has 2147483647 x 2147483647 pixels, over the limit of 1000000")
    assert "--media-max-pixels" in said


def test_a_jpeg_that_is_painted_thousands_of_times_is_refused() -> None:
    data = saved(picture(), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    scan = data[start : data.index(b"\xff\xc4", start)]
    with pytest.raises(InvalidRequest, match="is a JPEG of [0-9]{3} scans, over the limit of 200"):
        decode(data[:start] + 300 * scan + data[start:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\x89PNG\r\n\x1a\n",
        png_of_header(100, 100),
        png_of_header(0, 5),
        saved(picture(), "TIFF"),
        saved(picture(size=(200, 200)), "PNG")[:-40],
        saved(picture(size=(64, 64)), "JPEG")[:-200],
        saved(picture(), "GIF")[:12],
        saved(picture(), "WEBP")[:30],
        saved(picture(), "BMP")[:40],
    ],
)
def test_what_is_no_whole_image_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(data)
    assert str(raised.value).startswith(f"{WHERE} cannot be decoded")
    assert "send a whole PNG, JPEG, WebP, GIF or BMP" in str(raised.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_damaged_bytes_are_an_image_or_a_sentence(kind: str) -> None:
    rng = random.Random(kind)
    whole = saved(picture(size=(40, 30)), kind)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            width, height, pixels = decode(bytes(data))
        except InvalidRequest:
            continue
        assert len(pixels) == 3 * width * height

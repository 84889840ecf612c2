"""Checks of a model file that can be made without the library, so that errors are sentences.

The library would end the engine process, or print a page, on files that are plainly wrong.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from milepost.errors import ModelFileError

MAGIC = b"GGUF"
HEADER = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of metadata values
VERSIONS = (2, 3)
PART_NAME = re.compile(r"^(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)


def check_model_file(path: Path) -> None:
    """Raise ModelFileError unless `path` and its further parts look like a GGUF model."""
    _check_header(path)
    for part in _further_parts(path):
        if not part.is_file():
            raise ModelFileError(f"{path} is split, and its part {part.name} is missing")
        _check_header(part)


def model_name_of(path: Path) -> str:
    """Return the name under which a file is served: its own, without part number and ending."""
    match = PART_NAME.match(path.name)
    return match["stem"] if match else path.name.removesuffix(".gguf")


def _check_header(path: Path) -> None:
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a directory; give a GGUF file in it with -m")
        with path.open("rb") as file:
            header = file.read(HEADER.size)
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}; give an existing GGUF file") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from None
    if not header:
        raise ModelFileError(f"{path} is empty; fetch it again")
    if header[:4] != MAGIC:
        raise ModelFileError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
    if len(header) < HEADER.size:
        raise ModelFileError(f"{path} is cut short after {len(header)} bytes; fetch it again")
    _check_version(path, header)


def _check_version(path: Path, header: bytes) -> None:
    _, version, num_tensors, _ = HEADER.unpack(header)
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{path} is a GGUF file for big-endian machines")
    if version not in VERSIONS:
        raise ModelFileError(
            f"{path} has version {version} of the GGUF format; versions 2 and 3 can be read"
        )
    if num_tensors == 0:
        raise ModelFileError(f"{path} holds no weights, only a vocabulary or metadata")


def _further_parts(path: Path) -> Iterator[Path]:
    match = PART_NAME.match(path.name)
    if not match or match["count"] == "00001":
        return
    if int(match["index"]) != 1:
        first = f"{match['stem']}-00001-of-{match['count']}{path.suffix}"
        raise ModelFileError(f"{path.name} is a later part of a split model; give {first}")
    for index in range(2, int(match["count"]) + 1):
        yield path.with_name(f"{match['stem']}-{index:05d}-of-{match['count']}{path.suffix}")

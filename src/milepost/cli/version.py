"""The versions that `milepost --version` shows.

`importlib.metadata` takes 30 ms to import (measured), so only the functions here load it.
"""

from __future__ import annotations

import re

from milepost import __version__

LIBRARY = "xllamacpp"


def pinned_library_version() -> str:
    """Return the version of the native library that milepost is made for; "" when not known."""
    from importlib import metadata

    try:
        requirements = metadata.requires("milepost") or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        if match := re.match(rf"{LIBRARY}\s*==\s*([\w.]+)", requirement):
            return match.group(1)
    return ""


def describe_version() -> str:
    """Return one line with the versions of milepost and of its native library."""
    from importlib import metadata

    pinned = pinned_library_version() or "of unknown version"
    try:
        installed = metadata.version(LIBRARY)
    except metadata.PackageNotFoundError:
        return f"milepost {__version__} ({LIBRARY} {pinned}, not installed)"
    if installed != pinned:
        return f"milepost {__version__} ({LIBRARY} {pinned}, but {installed} is installed)"
    return f"milepost {__version__} ({LIBRARY} {pinned})"

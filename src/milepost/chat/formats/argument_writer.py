"""Writes the JSON text of arguments that a model has not written as JSON, value by value."""

from __future__ import annotations

import json

from milepost.chat.formats.json_text import escape
from milepost.chat.formats.text_source import Write


class ArgumentWriter:
    """Writes one JSON object, spaced as `json.dumps` does it."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self._has_keys = False

    def key(self, key: str) -> None:
        """Begin the next argument; its value is written with `write`."""
        self.write(f"{', ' if self._has_keys else '{'}{quote(key)}: ")
        self._has_keys = True

    def string_piece(self, text: str) -> None:
        """Write a part of a string; its quotes are written with `write`."""
        self.write(escape(text))

    def end(self) -> None:
        """End the object."""
        self.write("}" if self._has_keys else "{}")


def quote(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)

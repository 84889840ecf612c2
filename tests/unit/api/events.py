"""Reads server-sent events."""

from __future__ import annotations

import json
from typing import Any

import httpx


def read_events(response: httpx.Response) -> list[Any]:
    """Return the events of a stream: objects, and "[DONE]"; comments are left out."""
    events: list[Any] = []
    for frame in response.text.split("\n\n"):
        if frame.startswith("data: "):
            data = frame.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events

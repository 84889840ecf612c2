"""A lean streaming client: it shares the cores with the server, so it does next to nothing."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 600.0
DATA = b"data: "
DONE = b"[DONE]"
TEXT = re.compile(rb'"content": ?"[^"]')  # some text: the first chunk has the role, and none


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """When the parts of a streamed answer came, on the monotonic clock."""

    sent: float
    first: float  # first event with text
    last: float  # last event with text
    num_tokens: int  # as the server counts them
    num_computed: int  # prompt tokens that were not cached, likewise


def read_stream(url: str, body: dict[str, Any]) -> StreamTimes:
    """Send a chat request and read its events; RuntimeError when it is refused."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    sent = time.perf_counter()
    try:
        connection.request(
            "POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RuntimeError(f"{response.status}: {response.read().decode()[:500]}")
        return _read_events(response, sent)
    finally:
        connection.close()


def read_streams(url: str, bodies: list[dict[str, Any]]) -> list[StreamTimes]:
    """Send several requests at once, each on its own thread."""
    results: list[StreamTimes | None] = [None] * len(bodies)

    def run(index: int) -> None:
        results[index] = read_stream(url, bodies[index])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = [result for result in results if result is not None]
    if len(finished) < len(bodies):
        raise RuntimeError(f"{len(bodies) - len(finished)} of {len(bodies)} streams failed")
    return finished


def _read_events(response: http.client.HTTPResponse, sent: float) -> StreamTimes:
    first = last = 0.0
    usage = b""
    while line := response.readline():
        if not line.startswith(DATA):
            continue
        if TEXT.search(line):
            last = time.perf_counter()
            first = first or last
        if b'"usage"' in line:
            usage = line[len(DATA) :]
        if line.startswith(DONE, len(DATA)):
            break
    counts = json.loads(usage)["usage"]
    num_cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return StreamTimes(
        sent, first, last, counts["completion_tokens"], counts["prompt_tokens"] - num_cached
    )

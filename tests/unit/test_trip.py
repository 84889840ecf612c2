"""A chat request passes few modules, so that a reader can follow it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.unit.api.conftest import Api

import milepost

MAX_MODULES = 30  # of the front end, in which a function runs during a plain chat request
# What the fakes of this test take the place of; a real request passes these as well.
REPLACED = {"workers/client.py", "protocol/framing.py", "libllama/vocab.py"}
# No stations of a request, but tools of all: log lines, bounded memories. (What is kept on disk is
# written by a thread of its own.)
TOOLS = {"logs.py", "lru.py"}
SOURCE = Path(milepost.__file__).parent
CHAT = {
    "stream": True,
    "max_tokens": 8,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ],
}


def test_a_warm_chat_request_passes_few_modules() -> None:
    with Api().connection() as send:
        send("POST", "/v1/chat/completions", json=CHAT)
        with watched_modules() as passed:
            response = send("POST", "/v1/chat/completions", json=CHAT)
    assert response.text.endswith("data: [DONE]\n\n")

    all_passed = sorted((passed | REPLACED) - TOOLS)

    packages = dict(Counter(path.split("/")[0] for path in all_passed))
    assert len(all_passed) <= MAX_MODULES, f"{len(all_passed)}, {packages}: {all_passed}"


@contextlib.contextmanager
def watched_modules() -> Iterator[set[str]]:
    """Yield a set of the modules of ours, by path, in which a function is called in the block."""
    passed: set[str] = set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(SOURCE):
            passed.add(path.relative_to(SOURCE).as_posix())

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)

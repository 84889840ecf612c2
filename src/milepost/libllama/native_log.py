"""What the native library logs, as lines of Python's logging; errors are kept for who asks.

Each part of the library that runs on a thread of its own has its own log: pieces of lines, and the
errors of a call, would be mixed up otherwise.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import Any

from cffi import FFI

LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
CONTINUED = 5  # ggml's level for "goes on with the line before"
LOG_PREFIX = re.compile(r"^(?:[\w~]+: )+")  # the functions that a line came through
SAYS_ONLY_THAT_IT_FAILED = re.compile(
    r"(error loading model: llama_model_loader: )?failed to (load model|decode|initialize)"
)
SAYS_NOTHING = (
    "decode: ",  # what its return code says too: aborted, or out of cells
    "find_slot: non-consecutive token position",  # as it must be around an image with M-RoPE
)
NUM_RECENT_ERRORS = 8  # arbitrary; a failed load logs two or three lines

logger = logging.getLogger(__name__)


class NativeLog:
    """Owns a log callback; must live as long as the library may call it."""

    def __init__(self, ffi: FFI) -> None:
        self._ffi = ffi
        self._recent_errors: deque[str] = deque(maxlen=NUM_RECENT_ERRORS)
        self.callback = ffi.callback("void (int, const char *, void *)", self._on_log)
        self._line = ""
        self._level = logging.DEBUG

    def take_errors(self) -> str:
        """Return the most telling of the errors that were logged since the last call.

        The innermost function knows best and logs first, but says it in its own terms; the ones
        around it add what they were doing, and that it failed. Empty when nothing was logged.
        """
        # A list at once: another thread of the library may log meanwhile.
        lines = [LOG_PREFIX.sub("", line) for line in list(self._recent_errors)]
        self._recent_errors.clear()
        telling = [line for line in lines if not SAYS_ONLY_THAT_IT_FAILED.match(line)]
        return (telling or lines or [""])[-1]

    def warn_of_errors(self) -> None:
        """Log the errors that nobody took: they did not make a call fail. Forget them."""
        for line in dict.fromkeys(list(self._recent_errors)):
            logger.warning("%s", line)
        self._recent_errors.clear()

    def _on_log(self, level: int, text: Any, _: Any) -> None:
        """Collect pieces into lines, and hand each whole line to Python's logging."""
        if level != CONTINUED:
            self._flush_line()
            self._level = LOG_LEVELS.get(level, logging.DEBUG)
        self._line += read_text(self._ffi, text)
        if self._line.endswith("\n"):
            self._flush_line()

    def _flush_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line:
            return
        if self._level >= logging.ERROR:
            self._recent_errors.append(line)  # they are in the message of the call that fails
        # What llama.cpp calls information (hundreds of lines at load) is detail for our users.
        is_warning = self._level == logging.WARNING and not line.startswith(SAYS_NOTHING)
        logger.log(logging.WARNING if is_warning else logging.DEBUG, "%s", line)


def read_text(ffi: FFI, pointer: Any) -> str:
    """Return a C string; empty for a null pointer."""
    if pointer == ffi.NULL:
        return ""
    return bytes(ffi.string(pointer)).decode(errors="replace")

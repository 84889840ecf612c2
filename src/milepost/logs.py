"""Where log records go and how they look; called once by each process.

The front end and the engine processes call `set_up_logging` with the same settings; an engine
writes to its own stderr, which is the front end's. Keys and tokens are never logged; prompts and
answers at most at DEBUG.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from milepost.config import LogSettings
from milepost.errors import ConfigurationError

# llama-server's numbers; its 4 (more info) and 5 (debug) are one level here.
LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
LEVEL_LETTERS = {
    logging.DEBUG: "D",
    logging.INFO: "I",
    logging.WARNING: "W",
    logging.ERROR: "E",
    logging.CRITICAL: "C",
}
# Libraries that log a line per request or per byte below this.
QUIET_LIBRARIES = {
    "asyncio": logging.WARNING,
    "filelock": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpcore2": logging.WARNING,
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    "huggingface_hub": logging.WARNING,
    "uvicorn.access": logging.WARNING,  # milepost logs one line per request itself
    "uvicorn.error": logging.WARNING,  # its start and stop are shown by milepost
}


def set_up_logging(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Send all records of this process to `stream` (stderr) and to the file of the settings.

    Replaces the handlers of the root logger, and of uvicorn's, which then pass their records on.
    Raises ConfigurationError if the file cannot be opened.
    """
    formatter = JsonFormatter() if settings.jsonl else LineFormatter()
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if settings.file:
        handlers.append(_open_file(settings.file))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(choose_level(settings))
    for name, level in QUIET_LIBRARIES.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(True)


def choose_level(settings: LogSettings) -> int:
    """Return Python's level for llama-server's verbosity."""
    if settings.verbose:
        return logging.DEBUG
    return LEVELS[min(settings.verbosity, len(LEVELS) - 1)]


class LineFormatter(logging.Formatter):
    """One readable line: time, level, the module without our package's name, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback, if there is one, follows on lines of its own."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        letter = LEVEL_LETTERS.get(record.levelno, "?")
        name = record.name.removeprefix("milepost.")
        line = f"{clock}.{int(record.msecs):03d} {letter} {name}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (Unix seconds), level, logger, process, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as text without line ends."""
        fields: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _open_file(path: str) -> logging.Handler:
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the log file {path} cannot be opened: {error.strerror}"
        ) from None

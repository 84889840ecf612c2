"""How log records look, and where they go."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from milepost.config import LogSettings
from milepost.errors import ConfigurationError
from milepost.logs import choose_level, set_up_logging


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        (LogSettings(), logging.INFO),
        (LogSettings(verbosity=0), logging.CRITICAL),
        (LogSettings(verbosity=1), logging.ERROR),
        (LogSettings(verbosity=2), logging.WARNING),
        (LogSettings(verbosity=4), logging.DEBUG),
        (LogSettings(verbosity=99), logging.DEBUG),
        (LogSettings(verbosity=0, verbose=True), logging.DEBUG),
    ],
)
def test_levels_are_llama_servers(settings: LogSettings, level: int) -> None:
    assert choose_level(settings) == level


def test_one_readable_line() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(), stream=stream)

    logging.getLogger("milepost.engine.loop").info("loaded %s", "a model")
    logging.getLogger("milepost.engine.loop").debug("not shown")

    assert stream.getvalue().endswith(" I engine.loop: loaded a model\n")
    assert stream.getvalue().count("\n") == 1


def test_json_lines_hold_one_object_each() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(jsonl=True), stream=stream)

    try:
        raise ValueError("inner\nlines")
    except ValueError:
        logging.getLogger("milepost.api").exception("two\nlines")

    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record["level"] == "error"
    assert record["logger"] == "milepost.api"
    assert record["message"] == "two\nlines"
    assert "ValueError: inner" in record["traceback"]


def test_the_file_gets_the_same_lines(tmp_path: Path) -> None:
    stream = io.StringIO()
    path = tmp_path / "log"
    path.write_text("before\n")
    set_up_logging(LogSettings(file=str(path)), stream=stream)

    logging.getLogger("milepost").warning("careful")

    assert path.read_text() == "before\n" + stream.getvalue()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the log file .* cannot be opened"):
        set_up_logging(LogSettings(file=str(tmp_path)))


def test_uvicorn_passes_its_records_on() -> None:
    stream = io.StringIO()
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(io.StringIO()))
    set_up_logging(LogSettings(), stream=stream)

    logging.getLogger("uvicorn.error").warning("started")

    assert stream.getvalue().endswith(" W uvicorn.error: started\n")


def test_setting_up_twice_does_not_double_the_lines() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(), stream=io.StringIO())
    set_up_logging(LogSettings(), stream=stream)

    logging.getLogger("milepost").info("once")

    assert stream.getvalue().count("once") == 1

"""The drawing of the exceptions is the truth, and each of them is an HTTP answer."""

from __future__ import annotations

import re

import pytest

from milepost import errors
from milepost.errors import ContextExceeded, InvalidRequest, MilepostError


def drawn_tree() -> list[tuple[str, str, int]]:
    """Return (class, parent, status) for each line of the drawing below the root."""
    rows, path = [], ["MilepostError"]
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│ ├└─]+)(\w+) +(\d{3})  \S", line):
            depth = len(found[1]) // 4
            del path[depth:]
            rows.append((found[2], path[-1], int(found[3])))
            path.append(found[2])
    return rows


def all_errors() -> list[type[MilepostError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, MilepostError)
    ]


def test_the_drawing_equals_the_classes() -> None:
    real = {
        (error.__name__, error.__bases__[0].__name__, error.http_status)
        for error in all_errors()
        if error is not MilepostError
    }
    assert set(drawn_tree()) == real
    assert len(drawn_tree()) == len(real)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_exception_has_an_answer(error: type[MilepostError]) -> None:
    assert 400 <= error.http_status < 600
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", error.kind)
    assert error.__doc__


def test_invalid_requests_name_their_field() -> None:
    assert InvalidRequest("bad", param="n").param == "n"
    assert InvalidRequest("bad").param is None
    assert str(InvalidRequest("bad", param="n")) == "bad"


def test_context_exceeded_says_both_numbers() -> None:
    error = ContextExceeded(5000, 4096)
    assert "5000 tokens" in str(error)
    assert "4096 tokens" in str(error)
    assert (error.num_prompt_tokens, error.num_context_tokens) == (5000, 4096)
    assert (error.http_status, error.kind) == (400, "exceed_context_size_error")

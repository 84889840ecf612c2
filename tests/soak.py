"""What `make test` does briefly, and `make soak` at length; the only place that knows which it is.

`make soak` runs the tests marked `soak`, with MILEPOST_SOAK=1. Some of them are in `make test` too,
with fewer rounds and cases; those with `SOAK_ONLY` are not.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

IS_SOAK = os.environ.get("MILEPOST_SOAK") == "1"
SOAK_ONLY = pytest.mark.soak(only=True)


def in_soak(at_length: T, otherwise: T) -> T:
    """Return the first value in `make soak`, the second in `make test`; mark the test `soak`."""
    return at_length if IS_SOAK else otherwise


def soak_beside(cases: Collection[T], kept: Collection[T]) -> list[Any]:
    """Return all cases as parameters; those that are not `kept` run in `make soak` alone."""
    return [case if case in kept else pytest.param(case, marks=SOAK_ONLY) for case in cases]


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test runs in `make soak` alone, and this is not it."""
    return not IS_SOAK and any(mark.kwargs.get("only") for mark in item.iter_markers("soak"))

"""Kinds that several packages name are written once, and libllama knows a number for each."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest

import milepost
from milepost.kinds import CacheType, FlashAttention, LoadMode, RopeScaling, SplitMode
from milepost.libllama.context import CACHE_TYPES, FLASH_ATTN, ROPE_SCALING
from milepost.libllama.model import LOAD_MODES, SPLIT_MODES

SOURCE = Path(milepost.__file__).parent


@pytest.mark.parametrize(
    ("kinds", "numbers"),
    [
        (CacheType, CACHE_TYPES),
        (FlashAttention, FLASH_ATTN),
        (LoadMode, LOAD_MODES),
        (SplitMode, SPLIT_MODES),
    ],
)
def test_libllama_has_the_number_of_each(kinds: Any, numbers: dict[str, int]) -> None:
    assert set(numbers) == set(get_args(kinds))


def test_the_model_may_say_how_rope_is_scaled() -> None:
    assert set(ROPE_SCALING) == {"", *get_args(RopeScaling)}


def test_no_literal_is_written_twice() -> None:
    homes: dict[frozenset[str], list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = literal_of(node)
            if len(names) > 1:
                homes.setdefault(names, []).append(str(path.relative_to(SOURCE)))
    assert [found for found in homes.values() if len(found) > 1] == []
    assert frozenset(get_args(CacheType)) in homes


def literal_of(node: ast.AST) -> frozenset[str]:
    """Return the strings of a `Literal[...]`; none of another node."""
    if not (isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal"):
        return frozenset()
    return frozenset(
        one.value
        for one in ast.walk(node.slice)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )

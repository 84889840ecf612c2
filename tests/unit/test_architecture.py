"""The map is right: every path that ARCHITECTURE.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:src|tests|docs|benchmarks)/[^`\s]*)`", MAP)))
# Files named after a full path of the same folder: `src/milepost/engine/loop.py` ... `slots.py`.
NAMES = sorted(set(re.findall(r"`([a-z_]+\.py)`", MAP)))


def test_the_map_names_paths() -> None:
    assert len(PATHS) > 20
    assert len(NAMES) > 5


@pytest.mark.parametrize("path", PATHS)
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_named_file_exists(name: str) -> None:
    assert list((ROOT / "src").rglob(name))

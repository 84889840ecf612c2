"""`milepost probe` with a model file: its own template, and its own tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import models

from milepost.cli.main import run


def test_the_template_of_a_model_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.write_model("full", tmp_path / "tiny.gguf")
    assert run(["probe", str(path), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["template"] == "tiny.gguf (default)"
    assert report["frames"]["user"] == {"start": "<|im_start|>user\n", "end": "<|im_end|>\n"}


def test_a_model_without_a_template_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.write_model("full", tmp_path / "tiny.gguf", template="")
    assert run(["probe", str(path)]) == 1
    assert "tiny.gguf has no chat template" in capsys.readouterr().err

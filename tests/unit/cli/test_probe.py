"""`milepost probe` with templates in files and built-in ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.chat.reply_templates import HERMES, template

from milepost.cli.main import run


def test_a_template_file_is_described_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(template(HERMES))
    assert run(["probe", str(path), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["template"] == str(path)
    assert report["reasoning"] is None
    assert report["tool_calls"]["format"] == "json_calls"
    assert report["tool_calls"]["call"] == {"start": "<tool_call>", "end": "</tool_call>"}
    assert report["frames"]["user"] == {"start": "<|user|>", "end": "<|end|>"}
    assert report["tools"] == "start"


def test_a_built_in_template_is_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "chatml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if "│" in line]
    assert ["reasoning", "none"] in rows
    assert ["generation: with reasoning", r'"<|im_start|>assistant\n"'] in rows
    assert ["tool fallback: tools in", '"system"'] in rows


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none", None, "is neither a file nor the name of a built-in template; the names are"),
        ("none.gguf", None, "there is no file"),
        ("short.bin", b"GGUF", "is cut short after 4 bytes"),
        ("bytes", b"\xff\xfe", "is neither a GGUF file nor a template, which is UTF-8 text"),
        ("bad.jinja", b"{% if %}", "has an error in line 1"),
    ],
)
def test_what_is_no_template_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    said: str,
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(["probe", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert name in error
    assert said in error

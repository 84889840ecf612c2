"""`--help` and `--version` are quick: nothing heavy is imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "jinja2",
    "cffi",
    "numpy",
    "huggingface_hub",
    "rich",
    "httpx",
    "matplotlib",
    "milepost.assemble",
    "milepost.bench",
    "milepost.client",
    "milepost.traces",
    "milepost.cache",
    "milepost.api",
    "milepost.chat",
    "milepost.libllama",
]
SCRIPT = """
import sys
from milepost.cli.main import run
status = run(sys.argv[1:])
print("LOADED", *sorted(set(sys.modules) & set({heavy!r})))
sys.exit(status)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["serve", "--help"],
        ["bench", "replay", "--help"],
        ["cache", "ls", "--help"],
        ["probe", "--help"],
        ["--version"],
        [],
    ],
)
def test_no_heavy_module_is_loaded(arguments: list[str]) -> None:
    script = SCRIPT.format(heavy=HEAVY)

    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "LOADED"
    assert len(done.stdout) > len("LOADED\n")


def test_help_of_the_program_does_not_even_load_the_settings() -> None:
    script = SCRIPT.format(heavy=["milepost.config", "msgspec"])

    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "LOADED"


def test_version_names_milepost_and_the_pinned_library() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "milepost.cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "milepost 0.1.0 (xllamacpp 2026.10.11549)\n"

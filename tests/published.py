"""Chat templates as published with their models, and recorded traces of an agent.

Data of others, with their licences beside them: `samples/templates`, `samples/traces`. A file that
is missing fails the tests that name it; nothing is skipped.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATE_FOLDER = Path(__file__).parent / "samples" / "templates"
TRACE_FOLDER = Path(__file__).parent / "samples" / "traces"
TEMPLATE_PATHS = sorted(TEMPLATE_FOLDER.glob("*.jinja"))
TRACE_PATHS = sorted(TRACE_FOLDER.glob("*.jsonl"))
assert TEMPLATE_PATHS, f"{TEMPLATE_FOLDER} holds no templates"
assert TRACE_PATHS, f"{TRACE_FOLDER} holds no traces"


def read_template(name: str) -> str:
    """Return a published template by the name of its file, without the suffix."""
    return (TEMPLATE_FOLDER / f"{name}.jinja").read_text("utf-8")

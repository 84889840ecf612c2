"""`milepost probe`: shows what is learnt from a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from milepost.cli.model_file import MAGIC, check_model_file


@click.command(
    "probe",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.argument("target", metavar="MODEL|TEMPLATE")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def probe_command(target: str, as_json: bool) -> None:
    """Show what is learnt from a chat template.

    MODEL is a GGUF file, whose templates are shown; TEMPLATE a file with a Jinja template, or the
    name of a built-in one.
    """
    # Loads the native library and Jinja.
    from milepost.assemble import describe_model_templates, describe_one_template

    path = Path(target)
    if _is_model(path):
        check_model_file(path)
        reports = describe_model_templates(path)
    else:
        reports = [describe_one_template(target)]
    if as_json:
        click.echo(json.dumps(reports, indent=1, ensure_ascii=False))
        return
    for report in reports:
        _print_report(report)


def _is_model(path: Path) -> bool:
    if path.suffix == ".gguf":  # so that a missing or empty file is called what it should be
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(report["template"]), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(report):
        table.add_row(Text(name), Text(value))
    console = Console(highlight=False)
    if not console.is_terminal:  # so that a file or a pipe has each row on one line
        console.width = 160
    console.print(table)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in report.items():
        if name == "notes":
            yield from (("note", note) for note in value)
        elif name == "traits":
            wanted = ((key.replace("_", " "), each) for key, each in value.items() if each)
            yield from ((f"wants: {key}", _show(each)) for key, each in wanted)
        elif name != "template":
            yield from _rows_of(name.replace("_", " "), value)


def _rows_of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a row for a value, or rows for those in it; what is empty inside is left out."""
    if not isinstance(value, dict):
        yield name, _show(value)
        return
    if set(value) == {"start", "end"}:
        yield (
            name,
            f"{_show(value['start'])} … {_show(value['end'])}" if any(value.values()) else "none",
        )
        return
    for key, each in value.items():
        if each not in ("", [], (), None, {"start": "", "end": ""}):
            yield from _rows_of(f"{name}: {key.replace('_', ' ')}", each)


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "none"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)

"""`python -m milepost.cli.flag_table` prints docs/flags.md, made from the settings."""

from __future__ import annotations

import click

from milepost.cli.collect import GROUPS, Entry, all_entries, negated_variable
from milepost.cli.flags import describe_default, option_metavar
from milepost.cli.foreign_flags import ACCEPTED_SWITCHES, ACCEPTED_WITH_VALUE, NOT_YET
from milepost.cli.values import describe_bounds

PREFACE = """\
# Flags of `milepost serve`

Made by `python -m milepost.cli.flag_table > docs/flags.md`; do not edit.

Names and meanings are llama-server's wherever it has the thing. A flag counts before its
environment variable, which counts before the default. Switches in the environment take `1`,
`true`, `on`, `enabled` or `0`, `false`, `off`, `disabled`; a variable `LLAMA_ARG_NO_…` switches
off whatever its value. An empty variable counts as not set.
"""
HEADING = "| flag | value | default | environment | |\n|---|---|---|---|---|"


def flag_document() -> str:
    """Return the text of docs/flags.md."""
    entries = list(all_entries())
    sections = [_section(group, entries) for group in GROUPS]
    return "\n".join([PREFACE, *sections, _foreign_section()])


def _section(group: str, entries: list[Entry]) -> str:
    rows = [_row(entry) for entry in entries if entry.flag.group == group]
    return "\n".join([f"## {group}\n", HEADING, *rows, ""])


def _row(entry: Entry) -> str:
    flag = entry.flag
    names = ", ".join(f"`{name}`" for name in [*flag.names.split(), *flag.negated.split()])
    metavar = option_metavar(entry)
    value = ", ".join(
        part
        for part in (f"`{metavar}`" if metavar else "", flag.unit, describe_bounds(flag))
        if part
    )
    variables = [flag.env] if flag.env else []
    if flag.env and flag.negated:
        variables.append(negated_variable(flag.env))
    environment = ", ".join(f"`{name}`" for name in dict.fromkeys(variables))
    cells = (names, value, describe_default(entry), environment, flag.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _foreign_section() -> str:
    accepted = ", ".join(f"`{name}`" for name in sorted(ACCEPTED_SWITCHES | ACCEPTED_WITH_VALUE))
    missing = ", ".join(f"`{name}`" for name in sorted(NOT_YET) if name.startswith("--"))
    return (
        "## llama-server's other flags\n\n"
        f"Accepted, since milepost does so anyway or has no counterpart: {accepted}.\n\n"
        f"Refused with a sentence, since milepost does not have them yet: {missing}.\n"
    )


if __name__ == "__main__":
    click.echo(flag_document(), nl=False)

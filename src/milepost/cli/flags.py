"""The click command whose options are made from the settings, with help in groups.

llama-server's way of writing flags is kept: `-ngl` is one flag, not three letters; underscores in
long names count as dashes; a flag that milepost lacks gets a sentence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import click

from milepost.cli.collect import GROUPS, Entry, all_entries
from milepost.cli.foreign_flags import (
    ACCEPTED_SWITCHES,
    ACCEPTED_WITH_VALUE,
    NOT_YET,
    REASONS,
)
from milepost.cli.values import describe_bounds

HELP_FLAGS = ("-h", "--help", "--usage")


class SettingOption(click.Option):
    """A click option of one setting; knows its entry, so that the help can group it."""

    def __init__(self, entry: Entry) -> None:
        flag = entry.flag
        names = flag.names.split()
        if flag.negated:
            # click wants a slash before the name of a negation, and a space where none is paired.
            names = [*names, *(f" /{name}" for name in flag.negated.split())]
        super().__init__(
            [entry.key, *names],
            is_flag=entry.is_switch,
            default=None,
            multiple=entry.is_list,
            type=None if entry.is_switch else click.UNPROCESSED,
            metavar=option_metavar(entry),
            help=describe(entry),
            expose_value=True,
        )
        self.entry = entry


class FlagCommand(click.Command):
    """A command with an option for every setting."""

    def __init__(self, name: str, **attributes: Any) -> None:
        params: list[click.Parameter] = [SettingOption(entry) for entry in all_entries()]
        super().__init__(
            name,
            params=params,
            context_settings={"help_option_names": list(HELP_FLAGS), "max_content_width": 110},
            **attributes,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Check the names of all flags, drop those without effect, and let click do the rest."""
        return super().parse_args(ctx, list(self._known_arguments(ctx, args)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        options = [param for param in self.params if isinstance(param, SettingOption)]
        for group in GROUPS:
            rows = [option_row(option.entry) for option in options if _group(option) == group]
            with formatter.section(group):
                formatter.write_dl(rows, col_max=34)
        with formatter.section("Other"):
            formatter.write_dl([(", ".join(HELP_FLAGS), "Show this text.")])

    def _known_arguments(self, ctx: click.Context, args: list[str]) -> Iterator[str]:
        options = {name: param for param in self.get_params(ctx) for name in _names(param)}
        remaining = iter(args)
        for arg in remaining:
            name, equals, value = arg.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            if name in options:
                yield name + equals + value
                if _takes_value(options[name]) and not equals:
                    yield from _next_value(ctx, name, remaining)
            elif name in ACCEPTED_WITH_VALUE and not equals:
                next(remaining, None)
            elif name not in ACCEPTED_SWITCHES and name not in ACCEPTED_WITH_VALUE:
                raise click.UsageError(explain_unknown(arg, name, list(options)), ctx)


def explain_unknown(arg: str, name: str, known: list[str]) -> str:
    """Return the sentence for an argument that is no flag of ours."""
    if not name.startswith("-") or name == "-":
        return f"{arg!r} was not expected; a model file is given with -m {arg}"
    if name in NOT_YET:
        reason = REASONS.get(name, "")
        return f"milepost does not have {name} yet" + (f"; {reason}" if reason else "")
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "see milepost serve --help"
    return f"there is no flag {name}; {hint}"


def option_row(entry: Entry) -> tuple[str, str]:
    """Return names and help of one option, as the help text shows them."""
    names = ", ".join([*entry.flag.names.split(), *entry.flag.negated.split()])
    metavar = option_metavar(entry)
    return (f"{names} {metavar}" if metavar else names), describe(entry)


def option_metavar(entry: Entry) -> str | None:
    """Return what stands for the value in the help; None for a switch."""
    if entry.is_switch:
        return None
    if entry.flag.metavar:
        return entry.flag.metavar
    if entry.flag.choices:
        return "|".join(entry.flag.choices)
    return "N" if isinstance(entry.default, int | float) else "TEXT"


def describe(entry: Entry) -> str:
    """Return the help of a setting with its unit, bounds, default and variable."""
    facts = [entry.flag.unit, describe_bounds(entry.flag)]
    default = describe_default(entry)
    facts += [f"default {default}"] if default else []
    facts += [f"env {entry.flag.env}"] if entry.flag.env else []
    notes = "; ".join(fact for fact in facts if fact)
    return f"{entry.flag.help} [{notes}]" if notes else entry.flag.help


def describe_default(entry: Entry) -> str:
    """Return the default as the help shows it; empty where there is none."""
    if entry.flag.shown_default:
        return entry.flag.shown_default
    if isinstance(entry.default, bool):
        return "on" if entry.default else "off"
    if isinstance(entry.default, float):
        return f"{entry.default:g}"
    if isinstance(entry.default, tuple):
        return ";".join(str(part) for part in entry.default)
    return str(entry.default) if entry.default != {} else ""


def _group(option: SettingOption) -> str:
    return option.entry.flag.group


def _names(param: click.Parameter) -> list[str]:
    return [*param.opts, *param.secondary_opts]


def _takes_value(param: click.Parameter) -> bool:
    return not (isinstance(param, click.Option) and param.is_flag)


def _next_value(ctx: click.Context, name: str, remaining: Iterator[str]) -> Iterator[str]:
    value = next(remaining, None)
    if value is None:
        raise click.UsageError(f"{name} needs a value", ctx)
    yield value

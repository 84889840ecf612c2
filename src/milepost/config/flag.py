"""`Flag`: how one setting is spelled on the command line, in the environment and in the documents.

A settings dataclass gives each field its default and its `Flag` with `setting`; the command line
(`milepost.cli.flags`) and `docs/flags.md` are made from that, so nothing is spelled twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How one setting is spelled outside: flags, environment variable, bounds and help."""

    names: str  # space-separated, short forms first
    negated: str = ""  # flags that set a boolean to False
    env: str = ""  # with `negated`, LLAMA_ARG_NO_... exists too, as upstream has it
    help: str
    group: str
    kind: str = ""  # a parser in milepost.cli.values; empty: by the field's type
    metavar: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None  # a bound that is itself excluded
    maximum: float | None = None
    shown_default: str = ""  # where the value alone says too little
    is_secret: bool = False  # never shown in reprs, help or logs


def setting(default: T, flag: Flag) -> T:
    """Return a dataclass field that carries its flag; typed as the value it holds."""
    metadata = {"flag": flag}
    if isinstance(default, dict):
        field: Any = dataclasses.field(default_factory=dict, metadata=metadata)
    else:
        field = dataclasses.field(default=default, metadata=metadata, repr=not flag.is_secret)
    return cast(T, field)


def iter_flags(record: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Flag]]:
    """Yield the fields of a settings dataclass that have a flag, in their order."""
    for field in dataclasses.fields(record):
        if "flag" in field.metadata:
            yield field, field.metadata["flag"]

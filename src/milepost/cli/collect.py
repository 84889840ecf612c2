"""Settings from what was given: command line, then environment, then defaults.

Owns the list of all settings (`all_entries`), from which the flags, the help text and
`docs/flags.md` are made, and the precedence. Reads the environment that it is handed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.cli.values import LIST_KINDS, parse_bool, parse_value
from milepost.config import (
    ChatSettings,
    EngineSettings,
    LogSettings,
    MediaInputSettings,
    ModelSource,
    ServerSettings,
    Settings,
)
from milepost.config.flag import Flag, iter_flags
from milepost.config.sampling import SAMPLING_FLAGS
from milepost.protocol.sampling import SamplingParams

SECTIONS: dict[str, type[Any]] = {
    "source": ModelSource,
    "engine": EngineSettings,
    "server": ServerSettings,
    "chat": ChatSettings,
    "media": MediaInputSettings,
    "log": LogSettings,
    "settings": Settings,
}
GROUPS = (
    "Model",
    "Server",
    "Context",
    "Cache",
    "Compute",
    "RoPE and YaRN",
    "Images and audio",
    "Chat",
    "Sampling",
    "Logging",
)


class BadValue(Exception):
    """A flag or variable has a value that cannot be; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting: its place in the records, its default and its flag."""

    section: str  # key of SECTIONS, or "sampling"
    field: str
    default: Any
    flag: Flag

    @property
    def key(self) -> str:
        """Name of the click parameter; unique, since flags are."""
        return self.flag.names.split()[-1].strip("-").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return isinstance(self.default, bool)

    @property
    def is_list(self) -> bool:
        """Whether several occurrences add up."""
        return self.flag.kind in LIST_KINDS


def all_entries() -> Iterator[Entry]:
    """Yield every setting that has a flag."""
    for section, record in SECTIONS.items():
        for field, flag in iter_flags(record):
            default = {} if field.default is dataclasses.MISSING else field.default
            yield Entry(section, field.name, default, flag)
    defaults = SamplingParams()
    for name, flag in SAMPLING_FLAGS:
        yield Entry("sampling", name, getattr(defaults, name), flag)


def collect_settings(
    given: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[Settings, ModelSource]:
    """Return the settings for click's parameters and an environment.

    `given` holds, by `Entry.key`, a text, a list of texts or a bool, and None for what was not
    given. Raises BadValue.
    """
    values: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, "sampling")}
    from_command_line: set[tuple[str, str]] = set()
    for entry in all_entries():
        place = (entry.section, entry.field)
        if given.get(entry.key) not in (None, ()):
            values[entry.section][entry.field] = _value_given(entry, given[entry.key])
            from_command_line.add(place)
        elif place not in from_command_line:
            values[entry.section].update(_value_of_environment(entry, environment))
    settings = Settings(
        engine=EngineSettings(**values["engine"]),
        server=ServerSettings(**values["server"]),
        chat=ChatSettings(**values["chat"]),
        media=MediaInputSettings(**values["media"]),
        log=LogSettings(**values["log"]),
        sampling=SamplingParams(**values["sampling"]),
        **values["settings"],
    )
    return settings, ModelSource(**values["source"])


def _value_given(entry: Entry, given: Any) -> Any:
    if isinstance(given, bool):
        return given
    flag_name = entry.flag.names.split()[-1]
    texts = given if isinstance(given, tuple) else (given,)
    parsed = [_parse(entry, text, f"{flag_name} {_shown(entry, text)}") for text in texts]
    return _joined(parsed) if entry.is_list else parsed[-1]


def _joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    # An empty part clears what came before it, as `--dry-sequence-breaker none` does upstream.
    joined: tuple[Any, ...] = ()
    for part in parts:
        joined = joined + part if part else ()
    return joined


def _value_of_environment(entry: Entry, environment: Mapping[str, str]) -> dict[str, Any]:
    name = entry.flag.env
    if not name:
        return {}
    if entry.flag.negated and negated_variable(name) in environment:
        return {entry.field: False}  # whatever its value, as upstream has it
    text = environment.get(name, "")
    if not text:
        return {}
    return {entry.field: _parse(entry, text, f"{name}={_shown(entry, text)}")}


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables that look like llama-server's settings, but are none of ours.

    llama-server has more of them than milepost: setting one must not go unnoticed.
    """
    known = {entry.flag.env for entry in all_entries()}
    known |= {negated_variable(name) for name in known}
    return sorted(
        name for name in environment if name.startswith("LLAMA_ARG_") and name not in known
    )


def negated_variable(name: str) -> str:
    """Return the variable whose mere presence switches a setting off."""
    return name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")


def _parse(entry: Entry, text: str, subject: str) -> Any:
    try:
        if entry.is_switch:
            return parse_bool(text)
        return parse_value(text, entry.default, entry.flag)
    except ValueError as error:
        raise BadValue(f"{subject} {error}") from None


def _shown(entry: Entry, text: str) -> str:
    if entry.flag.is_secret:
        return "(secret)"
    return text if len(text) <= 80 else text[:77] + "..."

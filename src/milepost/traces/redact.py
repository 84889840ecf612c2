"""Takes names, paths, addresses and keys out of a trace, so that it can be shown to others.

The same text always becomes the same placeholder, in every message. So requests share the prefixes
that they shared before, and edits still find their text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from milepost.errors import BenchmarkFailed
from milepost.traces.trace import Trace, TraceLine, read_trace, write_trace

HOME = re.compile(r"(?:/home/|/Users/|\b[A-Za-z]:\\{1,4}Users\\{1,4})([A-Za-z0-9._-]+)")
# Of images, machines for tests and services: they name nobody.
NOT_NAMES = {"root", "user", "runner", "node", "ubuntu", "vscode", "app", "git", "Public", "Shared"}
NOT_TEXTS = {"op", "ref", "role", "type"}  # keys whose values are words of a format
MIN_NAME_CHARS = 3  # a shorter one would be found inside everything

# In the order in which they are applied: an address holds a host, a key may hold digits and dots.
KEY = (
    r"\b(?:sk|pk|ghp|gho|ghs|github_pat|glpat|hf|xox[abp])[-_][A-Za-z0-9_-]{12,}"
    r"|\bAKIA[A-Z0-9]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
)
EMAIL = r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b"
IPV4 = r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"
# Starts as addresses in use do; else every `std::io` of a program would be near one.
IPV6 = (
    r"(?<![\w:])(?:fe80|f[cd][0-9A-Fa-f]{2}|[23][0-9A-Fa-f]{3})"
    r":[0-9A-Fa-f:]*:[0-9A-Fa-f]{1,4}(?![\w:])"
)
MAC = r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"
# What cannot be told from a version number or names nobody.
KEPT_ADDRESSES = re.compile(r"127\.|0\.0\.0\.0|255\.|\d\.\d\.\d\.\d$|.*@(?:\w+\.)*example\.\w+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionRules:
    """What the user wants replaced besides what is found by its form."""

    names: Sequence[str] = ()  # people, companies, hosts, projects
    paths: Sequence[str] = ()  # folders, with all that is in front of a file's own path


@dataclass(slots=True)
class Redactor:
    """Replaces texts, and remembers what it replaced them with."""

    rules: RedactionRules = field(default_factory=RedactionRules)
    placeholders: dict[str, str] = field(default_factory=dict)  # found text -> what replaced it
    _counts: dict[str, int] = field(default_factory=dict)
    _names: re.Pattern[str] | None = None

    def learn_names(self, text: str) -> None:
        """Take the names of users from the home folders in a text."""
        for name in HOME.findall(text):
            if len(name) >= MIN_NAME_CHARS and name not in NOT_NAMES:
                self._placeholder("user", name)

    def redact_text(self, text: str) -> str:
        """Return a text without what is to be hidden."""
        for path in sorted(self.rules.paths, key=len, reverse=True):
            text = text.replace(path, self._placeholder("/folder", path))
        for kind, pattern in (("key-", KEY), ("mac-", MAC), ("address-", IPV6), ("ip-", IPV4)):
            text = self._replace_matches(kind, pattern, text)
        text = self._replace_matches("someone", EMAIL, text, suffix="@example.com")
        return self._replace_names(text)

    def redact(self, value: Any) -> Any:
        """Return a JSON value with the texts in it redacted; keys stay as they are."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list | tuple):
            return [self.redact(part) for part in value]
        if isinstance(value, Mapping):
            return {
                key: part if key in NOT_TEXTS else self.redact(part) for key, part in value.items()
            }
        return value

    def _replace_matches(self, kind: str, pattern: str, text: str, *, suffix: str = "") -> str:
        def replaced(match: re.Match[str]) -> str:
            found = match.group()
            if KEPT_ADDRESSES.match(found):
                return found
            return self._placeholder(kind, found, suffix)

        return re.sub(pattern, replaced, text)

    def _replace_names(self, text: str) -> str:
        if self._names is None:
            for name in self.rules.names:
                self._placeholder("name", name)
            found = [n for n, p in self.placeholders.items() if re.fullmatch(r"(user|name)\d+", p)]
            ordered = sorted(found, key=len, reverse=True)
            # Not inside a longer word, but beside "_" and "-": alice-laptop is alice's.
            self._names = re.compile(
                "|".join(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])" for name in ordered) or r"(?!)",
                re.IGNORECASE,
            )
            self.placeholders |= {name.lower(): self.placeholders[name] for name in ordered}
        return self._names.sub(lambda match: self.placeholders[match.group().lower()], text)

    def _placeholder(self, kind: str, found: str, suffix: str = "") -> str:
        if found not in self.placeholders:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            self.placeholders[found] = f"{kind}{number}{suffix}"
        return self.placeholders[found]


def redact_trace(trace: Trace, rules: RedactionRules) -> tuple[Trace, dict[str, str]]:
    """Return the trace without what is to be hidden, and what was replaced by what."""
    redactor = Redactor(rules)
    for text in _texts_of([trace.threads, [line.edits for line in trace.lines], trace.tools]):
        redactor.learn_names(text)
    redacted = replace(
        trace,
        name=redactor.redact_text(trace.name),
        params=redactor.redact(trace.params),
        tools=redactor.redact(trace.tools),
        threads=redactor.redact(trace.threads),
        lines=[_redact_line(redactor, line) for line in trace.lines],
    )
    return redacted, redactor.placeholders


def redact_file(source: Path, target: Path, rules: RedactionRules) -> dict[str, str]:
    """Read a trace, write its redacted form, and return what was replaced. Raises BenchmarkFailed.

    The result is read back: an edit whose text came apart would show here.
    """
    if target.exists():
        raise BenchmarkFailed(f"{target} is there already; choose another name")
    redacted, placeholders = redact_trace(read_trace(source), rules)
    write_trace(target, redacted)
    read_trace(target)
    return placeholders


def _redact_line(redactor: Redactor, line: TraceLine) -> TraceLine:
    is_message = isinstance(line.reply, dict) and "ref" not in line.reply
    return replace(
        line,
        session=redactor.redact_text(line.session),
        edits=tuple(redactor.redact(edit) for edit in line.edits),
        reply=redactor.redact(line.reply) if is_message else line.reply,
        markers=redactor.redact(line.markers),
    )


def _texts_of(value: Any) -> list[str]:
    """Return all texts in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts_of(part)]
    return []

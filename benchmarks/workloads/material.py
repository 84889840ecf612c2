"""Text of an invented project: source code, logs, listings and prose, as tools return them.

All of it is expanded from the templates in `texts/` by a seeded random source, so that the same
seed gives the same text on every machine and no two pieces are alike.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Literal

TEXTS = Path(__file__).parent / "texts"
SEPARATOR = "\n----\n"

Language = Literal["python", "typescript"]
EXTENSIONS: dict[Language, str] = {"python": "py", "typescript": "ts"}


def read_text(name: str) -> str:
    """Return one of the texts without the newline at its end."""
    return (TEXTS / name).read_text(encoding="utf-8").rstrip("\n")


def read_tools() -> list[dict[str, Any]]:
    """Return the tool definitions as a chat request carries them."""
    return [_make_tool(entry) for entry in json.loads(read_text("tools.json"))]


def _make_tool(entry: dict[str, Any]) -> dict[str, Any]:
    properties = {
        name: {"type": kind, "description": description}
        for name, (kind, description) in entry["parameters"].items()
    }
    parameters = {"type": "object", "properties": properties, "required": entry["required"]}
    function = {"name": entry["name"], "description": entry["description"]}
    return {"type": "function", "function": {**function, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Place:
    """A file of the invented project, and the words that its text is about."""

    path: str
    words: dict[str, str]


class Material:
    """An endless supply of text about one project."""

    def __init__(self, project: str, language: Language, seed: int) -> None:
        self.project = project
        self.language = language
        self._random = random.Random(f"{project}/{seed}")
        self._words = _read_words()
        self._functions = read_text(f"{language}_functions.txt").split(SEPARATOR)
        self._header = read_text(f"{language}_header.txt")

    def draw(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return self._random.randint(low, high)

    def choose_place(self) -> Place:
        """Return a file to work on."""
        words = self._draw_words()
        folder, noun = words["package"], words["noun"]
        return Place(f"{self.project}/{folder}/{noun}.{EXTENSIONS[self.language]}", words)

    def sentence(self, name: str, place: Place | None = None) -> str:
        """Return a line of a text with its gaps filled in."""
        return self._fill(self._random.choice(read_text(name).split("\n")), place)

    def whole(self, name: str, **words: str) -> str:
        """Return an entire text with its gaps filled in, these words first."""
        return Template(read_text(name)).substitute(self._draw_words() | words)

    def prose(self, num_sentences: int, place: Place | None = None) -> str:
        """Return sentences of somebody who thinks about a file."""
        return " ".join(self.sentence("prose.txt", place) for _ in range(num_sentences))

    def source_file(self, place: Place, num_functions: int) -> str:
        """Return a source file with line numbers, as `read` shows it."""
        parts = [self._fill(self._header, place)]
        parts += [self.function(place) for _ in range(num_functions)]
        lines = "\n\n".join(parts).split("\n")
        return "\n".join(f"{number:5}  {line}" for number, line in enumerate(lines, 1))

    def function(self, place: Place) -> str:
        """Return one function or class about the noun of a place."""
        return self._fill(self._random.choice(self._functions), place)

    def log(self, num_lines: int) -> str:
        """Return lines of a service's log, in order of time."""
        templates = read_text("log_lines.txt").split("\n")
        now_ms = self.draw(0, 3_600_000)
        lines = []
        for _ in range(num_lines):
            now_ms += self.draw(1, 4000)
            seconds, ms = divmod(now_ms, 1000)
            time = f"{6 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"
            words = self._draw_words() | {"time": time, "id": str(self.draw(1000, 99999))}
            lines.append(Template(self._random.choice(templates)).substitute(words))
        return "\n".join(lines)

    def test_report(self, num_lines: int) -> str:
        """Return what a test runner prints, with one failure in the middle."""
        lines = []
        for number in range(num_lines):
            words = self._draw_words()
            outcome = "FAILED" if number == num_lines // 2 else "PASSED"
            percent = 100 * (number + 1) // num_lines
            lines.append(
                f"tests/{words['package']}/test_{words['noun']}.{EXTENSIONS[self.language]}"
                f"::{words['verb']}_{words['adjective']}_{words['other']} {outcome} [{percent:3}%]"
            )
        failed = self._draw_words()
        lines.append(
            f"E   expected {failed['field']} {failed['n']}, got {failed['m']} "
            f"for a {failed['adjective']} {failed['noun']}"
        )
        lines.append(f"1 failed, {num_lines - 1} passed in {self.draw(1, 40)}.{self.draw(10, 99)}s")
        return "\n".join(lines)

    def matches(self, place: Place, num_lines: int) -> str:
        """Return lines that a search for the noun of a place found."""
        lines = []
        for _ in range(num_lines):
            found = self.choose_place().path
            code = self._random.choice(self.function(place).split("\n")).strip()
            lines.append(f"{found}:{self.draw(1, 400)}: {code or place.words['noun']}")
        return "\n".join(lines)

    def listing(self, num_lines: int) -> str:
        """Return paths with sizes, sorted."""
        paths = sorted({self.choose_place().path for _ in range(num_lines)})
        return "\n".join(f"{self.draw(400, 24000):6} {path}" for path in paths)

    def diff(self, place: Place, num_hunks: int) -> str:
        """Return a change to a file as version control shows it."""
        parts = [f"--- a/{place.path}", f"+++ b/{place.path}"]
        for _ in range(num_hunks):
            lines = self.function(place).split("\n")
            start, cut = self.draw(1, 300), self.draw(1, max(1, len(lines) // 3))
            parts.append(f"@@ -{start},{len(lines)} +{start},{len(lines) - cut} @@")
            parts += [f"-{line}" for line in lines[:cut]] + [f" {line}" for line in lines[cut:]]
        return "\n".join(parts)

    def _fill(self, text: str, place: Place | None) -> str:
        words = self._draw_words()
        if place is not None:
            kept = ("noun", "Noun", "NOUN", "package")
            words |= {key: place.words[key] for key in kept}
        return Template(text).substitute(words)

    def _draw_words(self) -> dict[str, str]:
        draw = {kind: self._random.choice(words) for kind, words in self._words.items()}
        noun, verb, state = draw["nouns"], draw["verbs"], draw["states"]
        other = self._random.choice([word for word in self._words["nouns"] if word != noun])
        return {
            "noun": noun,
            "Noun": _capitalise(noun),
            "NOUN": noun.upper(),
            "other": other,
            "Other": _capitalise(other),
            "verb": verb,
            "Verb": verb.capitalize(),
            "adjective": draw["adjectives"],
            "field": draw["fields"],
            "state": state,
            "STATE": state.upper(),
            "package": draw["packages"],
            "n": str(self.draw(10, 480)),
            "m": str(self.draw(2, 60)),
        }


def _read_words() -> dict[str, list[str]]:
    lines = (line.split(": ", 1) for line in read_text("words.txt").split("\n"))
    return {kind: words.split() for kind, words in lines}


def _capitalise(noun: str) -> str:
    return "".join(part.capitalize() for part in noun.split("_"))

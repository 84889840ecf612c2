"""Writes grammars for llguidance, rule by rule, in its dialect of Lark.

Knows how text, control tokens, JSON schemas and free text are written, and nothing of replies. A
control token stands in a grammar by its id: text that merely spells it is another thing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.chat.conversation.rendered_prompt import ControlTexts, RenderedPrompt
from milepost.chat.vocab import Vocab

# White space in JSON: none, one space, or a line break with its indentation. Without a limit a
# small model may write white space to the end of its context.
JSON_SPACE = r" |\n{1,2}[ \t]{0,40}"
# Without "u", of which llguidance takes control characters only: a model that has begun to write
# another one would end with one of these.
PLAIN_ESCAPES = 'nrtbf\\"'
MAX_SPACE = 8  # characters between two parts of a call; arbitrary
SPACE = rf"[ \t\r\n]{{0,{MAX_SPACE}}}"

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The control tokens of a vocabulary, as far as grammars are concerned."""

    by_text: Mapping[str, int] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()  # those that end a generation
    texts: ControlTexts = field(default_factory=ControlTexts)  # finds them in markers

    @classmethod
    def make(cls, by_text: Mapping[str, int], ends: frozenset[int] = frozenset()) -> SpecialTokens:
        """Return the special tokens with these texts; a single character is no marker."""
        texts = {text: token for text, token in by_text.items() if len(text) > 1}
        return cls(texts, ends, ControlTexts(texts))

    @classmethod
    def of(cls, vocab: Vocab) -> SpecialTokens:
        """Return the special tokens of a vocabulary; that takes a while with a thousand of them."""
        return cls.make(vocab.control_texts(), vocab.eog_tokens)


class GrammarWriter:
    """Collects the rules of one grammar. Methods return expressions that stand for what they name.

    An empty expression stands for the empty text.
    """

    def __init__(self, specials: SpecialTokens) -> None:
        self._specials = specials
        self._names: dict[str, str] = {}  # what stands after a rule's name -> the name
        self._recursive: dict[str, str] = {}  # name -> expression
        self._num_fresh = 0

    def finish(self, start: str) -> str:
        """Return the grammar whose texts are those of an expression."""
        rules = [f"{name}{body}" for body, name in self._names.items()]
        rules += [f"{name}: {expression}" for name, expression in self._recursive.items()]
        return "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])

    def rule(self, expression: str) -> str:
        """Give an expression a name, so that it can be used where one symbol must stand."""
        return self._name("r", f": {expression}")

    def recursive(self, name: str, write: Callable[[str], str]) -> str:
        """Return the rule of a name; `write` makes its expression, in which the name may stand."""
        if name not in self._recursive:
            self._recursive[name] = ""  # known from here on, so that it may stand in itself
            self._recursive[name] = write(name)
        return name

    def plain(self, text: str) -> str:
        """Return an expression for a text without control tokens, however it reads."""
        return quote(text) if text else ""

    def exact(self, marker: str) -> str:
        """Return an expression for a marker of the template, its control tokens as tokens.

        It is cut where a token ends the generation: nothing can come after that.
        """
        return seq(*self._parts(marker))

    def start_marker(self, marker: str) -> str:
        """Return a marker and the white space that may stand after it."""
        return seq(self.exact(marker.rstrip()), self.space) if marker.strip() else ""

    def end_marker(self, marker: str) -> str:
        """Return the white space that may stand before a marker, and the marker."""
        return seq(self.space, self.exact(marker.strip())) if marker.strip() else ""

    def optional(self, expression: str) -> str:
        """Return an expression, or nothing."""
        return f"({expression})?" if expression else ""

    @property
    def space(self) -> str:
        """White space, or none."""
        return self._name("W", rf": /[ \t\r\n]{{1,{MAX_SPACE}}}/") + "?"

    def pattern(self, regex: str) -> str:
        """Return a terminal for a regular expression, which holds no slash."""
        return self._name("T", f": /{regex}/")

    def words(self, regexes: Iterable[str], start: str = "", end: str = "") -> str:
        """Return one terminal for any of some texts, written as regular expressions."""
        return self.pattern(f"{start}({'|'.join(regexes)}){end}")

    def other_than(self, terminal: str, excluded: str) -> str:
        """Return a terminal for what is one, and not another."""
        return self._name("T", f": {terminal} & ~{excluded}")

    def json(self, schema: Schema | bool, **options: Any) -> str:
        """Return an expression for the JSON values of a schema, as llguidance writes them.

        That allows few escapes in strings: `json_values` writes what it can by itself. Options of
        llguidance come from its `x-guidance` (`schema_check`), and from `options`.
        """
        whole = dict(schema) if isinstance(schema, dict) else json_schema_of(schema)
        own = whole.get("x-guidance", {"lenient": True})
        escapes = {"json_allowed_escapes": PLAIN_ESCAPES}
        whole["x-guidance"] = {"whitespace_pattern": JSON_SPACE, **escapes, **own, **options}
        return self._name("j", f": %json {json.dumps(whole)}")

    def text(self, beside: Iterable[str] = ()) -> str:
        """Return free text with any control tokens but those that begin a marker in `beside`."""
        return seq(self._pieces(beside), self._name("TEXT", r": /(.|\n)+/") + "?")

    def until(self, marker: str, beside: Iterable[str] = ()) -> str:
        """Return free text up to the first place where a marker stands, and the marker.

        Control tokens that begin the marker, or one of `beside`, are no part of the text.
        """
        pieces = self._pieces((marker, *beside))
        return seq(pieces, self.short_until(marker.strip(), r"(.|\n)*"))

    def short_until(self, marker: str, regex: str) -> str:
        """Return text of a form, up to the first place where a marker stands, and the marker."""
        parts = self._parts(marker)
        if not parts:  # it ends the generation
            return f"/{regex}/"
        first, *rest = parts
        if is_token(first):
            return seq(f"/{regex}/", first, *rest)
        return seq(self.lazy(f"/{regex}/ {first}"), *rest)

    def lazy(self, terminals: str) -> str:
        """Return the shortest text that follows terminals, which hold no rules and no tokens."""
        return self._name("head", f"[lazy]: {terminals}")

    def fresh(self, kind: str) -> str:
        """Return a name for a rule that no other one has."""
        self._num_fresh += 1
        return f"{kind}_{self._num_fresh}"

    def _pieces(self, beside: Iterable[str]) -> str:
        """Return free text that ends with a control token, any number of times."""
        excluded = {part for marker in beside for part in self._parts(marker.strip())[:1]}
        tokens = sorted(
            token
            for token in set(self._specials.by_text.values()) - self._specials.ends
            if token_expression(token) not in excluded
        )
        if not tokens:
            return ""
        text = self._name("TEXT", r": /(.|\n)+/")
        return f"{self._name('piece', f': {text}? <[{write_ranges(tokens)}]>')}*"

    def _parts(self, marker: str) -> list[str]:
        parts: list[str] = []
        done = 0
        for start, end in self._specials.texts.token_spans(RenderedPrompt.of_trusted(marker)):
            token = self._specials.by_text[marker[start:end]]
            if start > done:
                parts.append(quote(marker[done:start]))
            done = end
            if token in self._specials.ends:
                return parts
            parts.append(token_expression(token))
        if done < len(marker):
            parts.append(quote(marker[done:]))
        return parts

    def _name(self, kind: str, body: str) -> str:
        if body not in self._names:
            self._names[body] = f"{kind}{len(self._names)}" if kind != "TEXT" else kind
        return self._names[body]


def seq(*parts: str) -> str:
    """Return an expression for one part after the other."""
    return " ".join(part for part in parts if part)


def choice(*parts: str) -> str:
    """Return an expression for any one of the parts, of which none is empty."""
    return parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' | '.join(parts)})"


def list_in_order(items: list[tuple[str, bool]], separator: str, writer: GrammarWriter) -> str:
    """Return an expression for items in their order, with a separator between them.

    Each comes with whether it is required.
    """
    first = more = ""  # the rest of the items where none was written yet, and where one was
    may_be_empty = True
    for item, is_required in reversed(items):
        here, step = seq(item, more), seq(separator, item)
        first = writer.rule(here if is_required or not first else choice(here, first))
        more = writer.rule(seq(step if is_required else writer.optional(step), more))
        may_be_empty = may_be_empty and not is_required
    return writer.optional(first) if may_be_empty else first


def quote(text: str) -> str:
    """Return a text as a literal of the grammar."""
    return json.dumps(_encodable(text), ensure_ascii=False)


def quote_regex(text: str) -> str:
    """Return a regular expression for a text, without slashes and quotes."""
    return "".join(char if char.isalnum() else _quote_char(char) for char in _encodable(text))


def is_token(expression: str) -> bool:
    """Return whether an expression is a control token."""
    return expression.startswith("<[")


def token_expression(token: int) -> str:
    """Return an expression for a token by its id."""
    return f"<[{token}]>"


def write_ranges(tokens: list[int]) -> str:
    """Return ids in rising order as ranges: "1-3,7"."""
    ranges: list[list[int]] = []
    for token in tokens:
        if ranges and ranges[-1][1] == token - 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _quote_char(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{{{code:x}}}"


def json_schema_of(value: bool) -> Schema:
    """Return a boolean schema as an object."""
    return {} if value else {"enum": []}

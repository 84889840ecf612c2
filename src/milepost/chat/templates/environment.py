"""The Jinja environment that chat templates are compiled in.

It offers what the hub's reference implementation (transformers) offers, because published
templates are written for that: sandbox, trimmed blocks, loop controls, the `generation` tag,
`raise_exception`, `strftime_now`, and `tojson` as plain JSON. Unlike there, lists may be appended
to: Kimi's templates do. A template comes with a model file from anywhere, so what it can cost is
bounded where Jinja allows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.utils import Namespace, missing

MAX_REPEATED_ITEMS = 1 << 20  # of `'x' * n`, as of `range(n)` in spirit; arbitrary
MAX_POWER_BITS = 1 << 12  # of `a ** b`; arbitrary
DICT_ATTRIBUTES = frozenset(dir(dict))


class RaisedByTemplate(jinja2.TemplateError):
    """The template called `raise_exception`; the message is its own."""


class TemplateEnvironment(jinja2.sandbox.SandboxedEnvironment):
    """Compiles chat templates."""

    # Without this, one short expression fills the memory or computes for hours.
    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            undefined=Missing,
        )
        self.filters["tojson"] = _tojson
        # Jinja's own makes HTML of all that is later added to the text.
        self.filters["safe"] = _pass
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj.attribute` as templates mean it: the attribute, or else the item."""
        # What plain data holds is safe, and an AttributeError for each key of a message, then the
        # sandbox's checks, took most of the time: measured, 23 -> 8 ms for gpt-oss's template and
        # 140 -> 45 ms for Gemma 4's with 287 messages.
        if type(obj) is dict and attribute not in DICT_ATTRIBUTES and attribute in obj:
            return obj[attribute]
        if type(obj) is Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, missing)
            if value is not missing:
                return value
        return super().getattr(obj, attribute)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Carry out an intercepted operator; raises OverflowError if the result is too large."""
        if operator == "**":
            _check_power(left, right)
        else:
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)


class Missing(jinja2.Undefined):
    """A name that is not there: nothing, where it is added to a text."""

    def __add__(self, other: Any) -> Any:
        """Return what it is added to."""
        return other

    __radd__ = __add__


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: marks replies for training; here just its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def find_variables(source: str) -> frozenset[str]:
    """Return the names that a template, which compiles, reads and does not set itself."""
    syntax = TemplateEnvironment(datetime.now).parse(source)
    return frozenset(jinja2.meta.find_undeclared_variables(syntax))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter sorts keys and escapes <, > and & for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: Any) -> Any:
    """Return what JSON has for a value that filters make, such as `map` and `selectattr`."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _pass(value: Any) -> Any:
    return value


def _raise_exception(message: object) -> NoReturn:
    raise RaisedByTemplate(str(message))


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        num_bits = base.bit_length() * exponent
        if num_bits > MAX_POWER_BITS:
            raise OverflowError(f"a power of {num_bits} bits is over {MAX_POWER_BITS}")


def _check_repetition(items: object, count: object) -> None:
    if not isinstance(items, str | list | tuple) or not isinstance(count, int):
        return
    if len(items) * count > MAX_REPEATED_ITEMS:
        raise OverflowError(f"{len(items) * count} repeated items are over {MAX_REPEATED_ITEMS}")

"""Checks schemas and grammars before anything is computed, and says where what is wrong stands.

llguidance says what is wrong with a schema and not where; the smallest part that is wrong in the
same way is the place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from milepost.chat.formats.call_schemas import as_root
from milepost.chat.formats.grammar_writer import Schema
from milepost.chat.formats.schema_resolver import Schemas
from milepost.errors import InvalidRequest
from milepost.lru import LruCache

MAX_SCHEMA_DEPTH = 64  # of objects and lists in a schema; llguidance refuses 128
# Of a schema and all parts that it refers to, one after the other. Measured: llguidance overflows
# its stack, which ends the process, at 3,000 levels and not at 2,400.
MAX_TOTAL_DEPTH = 1000
# Rules of a grammar in one another. Measured: llguidance overflows its stack at 2,000 in the worst
# case, and takes seconds to refuse what is not far below that.
MAX_RULE_DEPTH = 1000
MAX_SCHEMA_BYTES = 1 << 20  # as JSON
# Symbols of a grammar. Measured: 200 strict tools of 20 arguments have 6,000; compiling 8,000 takes
# 0.2 s and 40,000 take 4 s, in which the engine does nothing else.
LIMITS = LLParserLimits(max_grammar_size=20_000)
MAX_CHECKED = 512  # grammars whose check is remembered; arbitrary
MAX_TRIED = 64  # parts of a wrong schema, each of which is a grammar to compile; arbitrary
MAX_REASON_CHARS = 300  # of what llguidance says; arbitrary

EXACT = {"coerce_one_of": True}
LENIENT = {"lenient": True}  # keywords that llguidance does not know are passed over
# What llguidance quotes of a grammar: "at 2(8): …", "   1 | %llguidance {}", "     ^^^".
PLACE_IN_GRAMMAR = re.compile(r"^at \d+\(\d+\): ")
GRAMMAR_LINE = re.compile(r"\d+ \||\^+$")
# The rules of a grammar as `grammar_writer` writes them, and what may be their names in others.
RULE = re.compile(r"^([a-z]\w*)(?:\[lazy\])?: (?!%json)(.*)$", re.MULTILINE)
NAME = re.compile(r"[a-z]\w*")
UNSATISFIABLE = "Unsatisfiable schema"
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")


def prepare_schema(
    schema: object, where: str, checker: GrammarChecker, *, is_exact: bool
) -> Schema:
    """Return a schema that grammars can be made of.

    With `is_exact` every keyword that is not understood is an error; otherwise it is passed over,
    as agents' tools are full of them. Raises InvalidRequest with the place of what is wrong;
    `where` is that of the schema in the request.
    """
    if not isinstance(schema, dict):
        raise _invalid(where, f"must be a JSON schema, an object, not {json.dumps(schema)[:80]}")
    if is_too_deep(schema, MAX_SCHEMA_DEPTH):
        raise _invalid(where, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise _invalid(where, f"has more than {MAX_SCHEMA_BYTES} bytes as JSON; send a smaller one")
    if sum(map(_depth_of, _referred_parts(schema))) > MAX_TOTAL_DEPTH:
        raise _invalid(
            where,
            f"and what it refers to are more than {MAX_TOTAL_DEPTH} levels deep, one after the "
            "other; send fewer definitions that are referred to",
        )
    cleaned = {key: value for key, value in schema.items() if key != "$schema"}
    cleaned["x-guidance"] = EXACT if is_exact else LENIENT
    reason = checker.find_schema_fault(cleaned)
    if reason:
        path, reason = find_place(cleaned, reason, checker)
        raise _invalid(where + path, f"cannot be used: {reason}")
    return cleaned


def find_place(schema: Schema, reason: str, checker: GrammarChecker) -> tuple[str, str]:
    """Return the path of the smallest part of a schema that is wrong, and what is wrong there.

    In a schema of very many parts it is the smallest that was found.
    """
    path = ""
    part = schema
    num_tried = 0
    while True:
        for step, child in _children(part):
            num_tried += 1
            if num_tried > MAX_TRIED:
                return path, reason
            alone = as_root({**child, "x-guidance": schema["x-guidance"]}, schema)
            fault = checker.find_schema_fault(alone)
            if fault == reason or (fault.startswith(UNSATISFIABLE) and UNSATISFIABLE in reason):
                path, part, reason = path + step, child, fault
                break
        else:
            return path, reason


def is_too_deep(value: Any, depth: int) -> bool:
    """Return whether objects and lists are nested more than `depth` times."""
    return depth < 0 or any(is_too_deep(one, depth - 1) for one in _inner_values(value))


class GrammarChecker:
    """Checks grammars, and remembers the last ones: agents send the same tools every time.

    Used by the threads that prepare requests; one that both check is checked twice.
    """

    def __init__(self) -> None:
        self._faults: LruCache[bytes, str] = LruCache(MAX_CHECKED)  # by the grammar's digest

    def find_schema_fault(self, schema: Schema) -> str:
        """Return what is wrong with a schema, "" if nothing is."""
        return self.find_fault(json.dumps({"grammars": [{"json_schema": schema}]}))

    def find_fault(self, grammar: str) -> str:
        """Return what is wrong with a grammar, "" if nothing is."""
        key = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        fault = self._faults.get(key)
        if fault is None:
            fault = _find_depth_fault(grammar) or _as_sentence(
                LLMatcher.validate_grammar(grammar, limits=LIMITS)
            )
            self._faults.put(key, fault)
        return fault


def _children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for key in MAPS:
        parts = schema.get(key)
        for name, part in parts.items() if isinstance(parts, dict) else ():
            if isinstance(part, dict):
                yield f".{key}.{name}", part
    for key in LISTS:
        parts = schema.get(key)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                yield f".{key}[{index}]", part
    for key in SINGLE:
        part = schema.get(key)
        if isinstance(part, dict):
            yield f".{key}", part


def _referred_parts(schema: Schema) -> Iterator[object]:
    """Yield a schema, and once each part that it refers to, without what stands in definitions."""
    schemas = Schemas(schema)
    waiting: list[object] = [schema]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            part = {
                key: value for key, value in part.items() if key not in ("$defs", "definitions")
            }
        yield part
        waiting += map(schemas.follow, _find_references(part))


def _find_references(value: object) -> Iterator[str]:
    """Yield the references in a value of JSON, which is not too deep."""
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value["$ref"]
    for inner in _inner_values(value):
        yield from _find_references(inner)


def _depth_of(value: object) -> int:
    """Return how deep objects and lists are nested, of what is not too deep."""
    return 1 + max(map(_depth_of, _inner_values(value)), default=0)


def _inner_values(value: object) -> Collection[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _find_depth_fault(grammar: str) -> str:
    """Return what is wrong if rules stand in one another too often for llguidance."""
    bodies = dict(RULE.findall(grammar))
    heights: dict[str, int] = {}
    waiting = ["start"]
    while waiting:
        name = waiting[-1]
        inner = [each for each in NAME.findall(bodies.get(name, "")) if each in bodies]
        if name not in heights:
            heights[name] = 0  # so that a rule in itself is followed once
            waiting += [each for each in inner if each not in heights]
            continue
        waiting.pop()
        heights[name] = 1 + max((heights[each] for each in inner), default=0)
        if heights[name] > MAX_RULE_DEPTH:
            return f"objects in one another have too many properties (more than {MAX_RULE_DEPTH})"
    return ""


def _as_sentence(fault: str) -> str:
    """Return what llguidance says without the lines of the grammar that it shows."""
    lines = (line.strip() for line in fault.splitlines())
    said = [PLACE_IN_GRAMMAR.sub("", line) for line in lines if not GRAMMAR_LINE.match(line)]
    return " ".join(filter(None, said))[:MAX_REASON_CHARS]


def _invalid(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{where} {what}", param=where)

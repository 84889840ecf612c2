"""JSON values of schemas: the same as llguidance's own, but for the escapes of strings."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.unit.chat.grammar_walks import Walker

from milepost.chat.formats.grammar_writer import GrammarWriter, SpecialTokens
from milepost.chat.formats.json_values import write_json
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema

CONSTANTS = ["a", "é/", "b c", 1, 2.5, None, True, ["x", 1], {"k": "v"}]
NAMES = ["a", "b", "c", "dé", "e/f"]
LEAVES = ("string", "integer", "enum", "ref", "boolean")
KINDS = (*LEAVES, "number", "types", "anyOf", "allOf", "array", "object", "object", "object", "any")


def make_schema(rng: random.Random, depth: int, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Return a random schema that may refer to A, B and C."""
    kind = rng.choice(kinds if depth < 3 else LEAVES)
    if kind in ("string", "integer", "number", "boolean"):
        bound = {"string": "maxLength", "integer": "minimum", "number": "minimum"}.get(kind, "")
        return {
            "type": kind,
            **({bound: rng.randint(1, 6)} if bound and rng.random() < 0.4 else {}),
        }
    if kind == "enum":
        return {"enum": rng.sample(CONSTANTS, rng.randint(1, 4))}
    if kind == "types":
        return {"type": rng.sample(["string", "integer", "null", "boolean"], 2)}
    if kind == "ref":
        return {"$ref": f"#/$defs/{rng.choice('ABC')}"}
    if kind == "allOf":
        return {"allOf": [{"$ref": f"#/$defs/{rng.choice('ABC')}"}], "description": "x"}
    if kind == "anyOf":
        return {rng.choice(["anyOf", "oneOf"]): [make_schema(rng, depth + 1) for _ in range(2)]}
    if kind == "array":
        bounds = {"minItems": rng.randint(0, 2), "maxItems": rng.randint(2, 3)}
        return {"type": "array", "items": make_schema(rng, depth + 1), **bounds}
    return make_object(rng, depth) if kind == "object" else {}


def make_object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: make_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
    }
    chance = rng.random()
    if chance < 0.5:
        schema["additionalProperties"] = False if chance < 0.4 else make_schema(rng, depth + 1)
    if chance > 0.9:
        schema["patternProperties"] = {"^x": {"type": "integer"}}
    return schema


def walk(walker: Walker, seed: int) -> str | None:
    reply = walker.walk(seed, num_tokens=300)
    return None if reply is None or "nfinity" in json.dumps(json.loads(reply)) else reply


@pytest.mark.parametrize("seed", range(60))
def test_values_are_those_that_llguidance_allows(seed: int) -> None:
    rng = random.Random(seed)
    schema = make_schema(rng, 0)
    # No definition is nothing but a reference: one to itself has no values in llguidance.
    schema["$defs"] = {name: make_schema(rng, 1, ("array", "object", "enum")) for name in "ABC"}
    schema = prepare_schema(schema, "s", GrammarChecker(), is_exact=True)
    writer = GrammarWriter(SpecialTokens())
    own = Walker(writer.finish(write_json(schema, writer)))
    theirs = Walker(writer.finish(writer.json(schema)))
    for number in range(4):
        if (reply := walk(theirs, number)) is not None:
            assert own.taken_of(reply) == reply
        if (reply := walk(own, number)) is not None:
            assert theirs.accepts(json.dumps(json.loads(reply), ensure_ascii=False)), reply

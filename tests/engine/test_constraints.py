"""Grammars of llguidance in a real engine: whatever the weights say, the text follows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests import models, sentencepiece
from tests.engine.conftest import Engines
from tests.engine.running import RunningEngine, prompt_tokens, running_engine

from milepost.errors import InvalidRequest
from milepost.protocol.sampling import SamplingParams

PROMPT = prompt_tokens(40)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["a", "bc"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
OBJECT = f"start: value\nvalue: %json {json.dumps(SCHEMA)}"


def held(constraint: str, **fields: Any) -> dict[str, Any]:
    """Return fields of a request whose answers follow a grammar."""
    sampling = SamplingParams(**{"temperature": 1.5, "seed": 1, **fields})
    return {"sampling": sampling, "constraint": constraint}


def is_valid(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "kind", "sizes"]
        and len(value["name"]) <= 12
        and value["kind"] in ("a", "bc")
        and len(value["sizes"]) <= 3
        and all(type(size) is int for size in value["sizes"])
    )


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_choice_follows_a_schema(engines: Engines, kind: models.Kind) -> None:
    answer = engines(kind).ask(PROMPT, num_choices=4, max_tokens=400, **held(OBJECT))
    ended = [choice for choice in answer.choices if choice.reason == "eos"]
    assert len(ended) >= 3  # a number may have hundreds of digits
    assert all(is_valid(choice.text) for choice in ended)
    assert len({choice.text for choice in answer.choices}) == 4


def test_a_schema_holds_without_sampling_freely(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, max_tokens=400, **held(OBJECT, temperature=0.0))
    assert answer.text.startswith('{"name":"')


def test_a_text_ends_where_the_grammar_lets_it_and_not_before(full: RunningEngine) -> None:
    wants_end = ((models.token_id(models.TURN_END), 100.0),)
    for grammar, text in (('start: "abc" "d"?', "abc"), ('start: "abc" "d"', "abcd")):
        answer = full.ask(PROMPT, **held(grammar, logit_bias=wants_end))
        assert (answer.text, answer.reason) == (text, "eos")


def test_a_grammar_that_has_ended_ends_the_answer(full: RunningEngine) -> None:
    answer = full.ask(PROMPT, **held('start: "abc"', ignore_eos=True))
    assert (answer.text, answer.reason) == ("abc", "eos")


def test_a_control_token_is_matched_by_its_id_only(full: RunningEngine) -> None:
    start = models.token_id(models.TURN_START)
    answer = full.ask(PROMPT, **held(f'start: "a" <[{start}]> "b"'))
    assert answer.tokens == [models.token_id("a"), start, models.token_id("b")]
    spelled = full.ask(PROMPT, **held(f'start: "{models.TURN_START}"'), special=True)
    assert spelled.text == models.TURN_START
    assert start not in spelled.tokens


def test_text_is_free_until_a_marker_appears(full: RunningEngine) -> None:
    lazy = 'start: head /[0-9]/ "." | TEXT\nhead[lazy]: TEXT "the"\nTEXT: /(.|\\n)*/'
    free = full.ask(PROMPT, max_tokens=60, **held("start: /(.|\\n)*/", seed=3))
    answer = full.ask(PROMPT, max_tokens=60, **held(lazy, seed=3))
    assert "the" in free.text
    head, tail = answer.text.split("the")
    assert free.text.startswith(head + "the")
    assert (tail[0].isdigit(), tail[1:]) == (True, ".")


def test_a_grammar_that_cannot_be_compiled_fails_alone(full: RunningEngine) -> None:
    with pytest.raises(InvalidRequest, match="cannot be compiled"):
        full.ask(PROMPT, **held('start: "a'))
    assert full.ask(PROMPT, **held('start: "a"')).text == "a"


def test_a_constraint_goes_on_after_a_pause(small_context: RunningEngine) -> None:
    long = [prompt_tokens(90, seed=seed) for seed in range(3)]
    many = held('start: ("ab" /[0-9]/)+', ignore_eos=True)
    answers = small_context.ask_all(
        *({"tokens": prompt, "max_tokens": 60, **many} for prompt in long)
    )
    for answer in answers:
        triples = [answer.text[i : i + 3] for i in range(0, 60, 3)]
        assert all(one[:2] == "ab" and one[2].isdigit() for one in triples)


def test_penalties_and_bans_go_with_a_constraint(full: RunningEngine) -> None:
    ban = ((models.token_id("b"), float("-inf")),)
    for fields in ({"mirostat": 2}, {"repeat_penalty": 1.5}, {"temperature": 1e-38}):
        answer = full.ask(PROMPT, **held("start: /[ab]{5}/", logit_bias=ban, **fields))
        assert answer.text == "aaaaa"


def test_the_first_answer_of_an_engine_may_have_a_constraint(
    tiny_models: dict[models.Kind, Any],
) -> None:
    with running_engine(tiny_models["full"]) as engine:
        assert engine.ask(PROMPT, **held('start: "now"')).text == "now"


@pytest.fixture(scope="module", params=[True, False], ids=["puts a space", "puts none"])
def sentencepiece_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    path = tmp_path_factory.mktemp("models") / "sentencepiece.gguf"
    sentencepiece.write_model(path, adds_space=request.param)
    with running_engine(path) as engine:
        yield engine


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: %json {"const": "42"}', '"42"'),
        ('start: %json {"const": {"a": ["the 42"]}}', '{"a":["the 42"]}'),
        ('start: "<tool_call>"', "<tool_call>"),
        ('start: "the" " the" "42"', "the the42"),
        ('start: " 4\\n\\tü日▁x"', " 4\n\tü日▁x"),  # the tokenizer makes a space of "▁"
    ],
)
def test_what_must_come_comes_with_a_sentencepiece_vocabulary(
    sentencepiece_engine: RunningEngine, grammar: str, text: str
) -> None:
    answer = sentencepiece_engine.ask(PROMPT, max_tokens=60, **held(grammar))
    assert (answer.text, answer.reason) == (text, "eos")

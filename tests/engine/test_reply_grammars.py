"""Calls in every format, written by a model with random weights, are what was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import models
from tests.engine.running import RunningEngine, prompt_tokens
from tests.unit.chat import reply_samples as samples

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import SpecialTokens
from milepost.chat.formats.reply_events import CallArguments, CallEnd, CallStart
from milepost.chat.formats.reply_format import GrammarSpec, ReplyFormat
from milepost.chat.replies.grammar import write_reply_grammar
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.protocol.sampling import SamplingParams

PROMPT = prompt_tokens(40)
FORMATS: dict[str, ReplyFormat] = {
    name.lower(): value for name, value in vars(samples).items() if isinstance(value, ReplyFormat)
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["all", "some"]},
        "depth": {"type": "integer", "minimum": 1, "maximum": 9},
        "deep": {"type": "boolean"},
    },
    "required": ["mode", "depth", "deep"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]
CONTROLS = SpecialTokens.make(
    {text: models.token_id(text) for text in models.CONTROL_TOKENS},
    frozenset({models.token_id(models.END_OF_TEXT), models.token_id(models.TURN_END)}),
)


def read_calls(reply_format: ReplyFormat, text: str) -> list[tuple[str, Any]]:
    """Return names and arguments of the calls of a whole reply."""
    parser = ReplyParser(reply_format, tools=TOOLS)
    events = [*parser.feed(text), *parser.finish(is_truncated=False)]
    names = [event.name for event in events if isinstance(event, CallStart)]
    assert len(names) == sum(isinstance(event, CallEnd) for event in events)
    texts = [""] * len(names)
    for event in events:
        if isinstance(event, CallArguments):
            texts[event.index] += event.text
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_has_the_name_and_the_arguments(full: RunningEngine, name: str) -> None:
    spec = GrammarSpec(
        reply_format=FORMATS[name],
        reasoning="none",
        tools=[CallableTool("find", SCHEMA, is_strict=True)],
        must_call=True,
        takes_several=False,
    )
    answer = full.ask(
        PROMPT,
        constraint=write_reply_grammar(spec, CONTROLS),
        sampling=SamplingParams(temperature=1.5, seed=3),
        num_choices=2,
        max_tokens=400,
        special=True,
    )
    for choice in answer.choices:
        assert choice.reason == "eos", choice.text
        ((called, arguments),) = read_calls(FORMATS[name], choice.text)
        assert called == "find"
        assert arguments["mode"] in ("all", "some")
        assert arguments["depth"] in range(1, 10)
        assert arguments["deep"] in (True, False)
        assert len(arguments) == 3

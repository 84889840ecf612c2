"""Replies to events: golden samples, however they are cut, broken off or damaged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.chat.reply_samples import (
    GPT_OSS,
    LLAMA3,
    QWEN3,
    QWEN3_CODER,
    QWEN25,
    QWEN_READ,
    READ,
    SAMPLES,
    TOOLS,
    ReplySample,
    call,
    content,
    make_tool,
    merge,
    reasoning,
)

from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.stream_parser import ReplyParser

CUT_READ = QWEN_READ[: QWEN_READ.index(".py")]

repeatable = settings(max_examples=150, deadline=None, derandomize=True, database=None)
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def parse(
    pieces: Iterable[str],
    reply_format: ReplyFormat,
    *,
    in_reasoning: bool = False,
    is_truncated: bool = False,
    tools: list[dict[str, Any]] | None = None,
) -> list[ReplyEvent]:
    """Return the merged events of a reply that comes in pieces."""
    numbers = itertools.count()
    parser = ReplyParser(
        reply_format,
        in_reasoning=in_reasoning,
        tools=TOOLS if tools is None else tools,
        make_id=lambda: f"made-{next(numbers)}",
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merge([*events, *parser.finish(is_truncated=is_truncated)])


def parse_sample(sample: ReplySample, pieces: Iterable[str]) -> list[ReplyEvent]:
    return parse(pieces, sample.reply_format, in_reasoning=sample.in_reasoning)


def without_ids(events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
    return [
        CallStart(event.index, "", event.name) if isinstance(event, CallStart) else event
        for event in events
    ]


@each_sample
def test_a_reply_has_the_events_of_its_family(sample: ReplySample) -> None:
    events = parse_sample(sample, [sample.text])

    assert without_ids(events) == without_ids(sample.events)


@each_sample
def test_complete_calls_have_arguments_that_are_json(sample: ReplySample) -> None:
    for event, end in itertools.pairwise(parse_sample(sample, [sample.text])):
        if isinstance(end, CallEnd) and isinstance(event, CallArguments):
            json.loads(event.text)


@each_sample
def test_every_cut_gives_the_same_events(sample: ReplySample) -> None:
    whole = parse_sample(sample, [sample.text])

    assert parse_sample(sample, sample.text) == whole, "character by character"
    for cut in range(1, len(sample.text)):
        pieces = [sample.text[:cut], sample.text[cut:]]
        assert parse_sample(sample, pieces) == whole, f"cut at {cut}"


@repeatable
@given(sample=st.sampled_from(SAMPLES), data=st.data())
def test_random_cuts_give_the_same_events(sample: ReplySample, data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(sample.text)), max_size=12)
    cuts = [0, *sorted(data.draw(places)), len(sample.text)]
    pieces = [sample.text[start:end] for start, end in itertools.pairwise(cuts)]

    assert parse_sample(sample, pieces) == parse_sample(sample, [sample.text])


def is_beginning(part: list[ReplyEvent], whole: list[ReplyEvent]) -> bool:
    """Say whether events are the first of others, the last one perhaps with less text."""
    if not part:
        return True
    *firsts, last = part
    if firsts != whole[: len(firsts)] or len(part) > len(whole):
        return False
    other = whole[len(firsts)]
    if isinstance(last, ContentText | ReasoningText | CallArguments):
        return (
            type(last) is type(other)
            and getattr(last, "index", 0) == getattr(other, "index", 0)
            and other.text.startswith(last.text)
        )
    return last == other


@each_sample
def test_a_truncated_reply_has_the_first_of_its_events(sample: ReplySample) -> None:
    whole = parse_sample(sample, [sample.text])

    for end in range(len(sample.text)):
        part = parse(
            [sample.text[:end]],
            sample.reply_format,
            in_reasoning=sample.in_reasoning,
            is_truncated=True,
        )
        assert is_beginning(part, whole), f"the first {end} characters"


@each_sample
def test_without_tools_nothing_is_a_call(sample: ReplySample) -> None:
    events = parse([sample.text], sample.reply_format, in_reasoning=sample.in_reasoning, tools=[])

    assert {type(event) for event in events} <= {ContentText, ReasoningText}


PIECES = sorted(
    {piece for sample in SAMPLES for piece in sample.reply_format.markers}
    | {piece for sample in SAMPLES for piece in sample.text.split()}
    | {" ", "\n", "{", "}", "[", "]", '"', "\\", "\\u", "d83d", ",", ":", "read", "1e", "("}
)
FORMATS = {sample.name: sample.reply_format for sample in SAMPLES}


@repeatable
@given(
    name=st.sampled_from(sorted(FORMATS)),
    pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30),
    in_reasoning=st.booleans(),
    is_truncated=st.booleans(),
)
def test_nothing_that_a_model_writes_is_an_error(
    name: str, pieces: list[str], in_reasoning: bool, is_truncated: bool
) -> None:
    def run(pieces: Iterable[str]) -> list[ReplyEvent]:
        return parse(pieces, FORMATS[name], in_reasoning=in_reasoning, is_truncated=is_truncated)

    events = run(pieces)

    assert run("".join(pieces)) == events
    for event, end in itertools.pairwise(events):
        if isinstance(end, CallEnd) and isinstance(event, CallArguments):
            json.loads(event.text)


@repeatable
@given(sample=st.sampled_from(SAMPLES), data=st.data())
def test_a_damaged_reply_is_no_error(sample: ReplySample, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sample.text)))
    end = data.draw(st.integers(start, min(start + 8, len(sample.text))))
    damage = data.draw(st.text(max_size=3) | st.sampled_from(PIECES))
    text = sample.text[:start] + damage + sample.text[end:]

    whole = parse_sample(sample, [text])

    assert parse_sample(sample, text) == whole


@pytest.mark.parametrize(
    "text",
    ["{" * 5000, "[" * 5000, '{"a":' * 5000, '{"function":' * 5000],
    ids=["{", "[", "keys", "wrapped"],
)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_deep_nesting_is_no_error(name: str, text: str) -> None:
    calls = FORMATS[name].tool_calls
    start = calls.section.start + calls.call.start if calls else ""

    parse([start + 'read(a=call:read{a:"name": ' + text], FORMATS[name])
    parse([start + text], FORMATS[name])


def test_text_is_held_back_only_while_it_may_become_a_marker() -> None:
    parser = ReplyParser(QWEN25, tools=TOOLS)

    assert parser.feed("a <tool") == [content("a")]
    assert parser.feed("box> b") == [content(" <toolbox> b")]


def test_an_answer_in_json_is_not_held_back() -> None:
    parser = ReplyParser(LLAMA3, tools=TOOLS)

    assert parser.feed('{"na') == []
    assert merge(parser.feed('mes": ["Ada'))[-1] == content('{"names": ["Ada')
    assert parser.feed('"]}') == [content('"]}')]


def test_arguments_are_streamed_as_they_come() -> None:
    parser = ReplyParser(QWEN25, tools=TOOLS, make_id=lambda: "x")
    parser.feed('<tool_call>\n{"name": "edit", "arguments": ')

    assert parser.feed('{"te') == [CallStart(0, "x", "edit"), CallArguments(0, '{"te')]
    assert parser.feed('xt": "one ') == [CallArguments(0, 'xt": "one ')]
    assert parser.feed('two"}}') == [CallArguments(0, 'two"}'), CallEnd(0)]


def test_string_arguments_in_tags_are_streamed_as_they_come() -> None:
    parser = ReplyParser(QWEN3_CODER, tools=TOOLS)
    parser.feed("<tool_call>\n<function=edit>\n<parameter=text>\n")

    assert parser.feed('say "a') == [CallArguments(0, 'say \\"a')]
    assert parser.feed("\nb\n") == [CallArguments(0, "\\nb")]
    assert parser.feed("</parameter>\n</function>") == [
        CallArguments(0, '"}'),
        CallEnd(0),
    ]


def test_a_truncated_call_is_a_call_without_end() -> None:
    events = parse([CUT_READ], QWEN25, is_truncated=True)

    assert events == [CallStart(0, "made-0", "read"), CallArguments(0, '{"path": "src/a')]


def test_a_reply_that_ends_inside_a_call_by_itself_is_noted() -> None:
    events = parse([CUT_READ], QWEN25)

    assert events[-1] == ParseWarning("the reply ends inside a tool call")


def test_a_reply_that_ends_before_the_name_is_text() -> None:
    events = parse(['Yes.\n<tool_call>\n{"na'], QWEN25)

    assert events == [
        content("Yes."),
        ParseWarning("the reply ends before a tool call has its name"),
        content('\n<tool_call>\n{"na'),
    ]


def test_a_call_of_an_unknown_tool_is_a_call() -> None:
    events = parse(['<tool_call>{"name": "f", "arguments": {}}</tool_call>'], QWEN25)

    assert events == list(call(0, "f", "{}"))


def test_a_format_without_reasoning_leaves_it_in_the_content() -> None:
    text = f"<think>\nHm.\n</think>\n\n{QWEN_READ}"

    events = parse([text], QWEN25, in_reasoning=True)

    assert events == [content("<think>\nHm.\n</think>"), *call(0, "read", READ)]


def test_harmony_without_reasoning_leaves_it_in_the_content() -> None:
    header = "<|channel|>analysis<|message|>"
    text = f"{header}Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."

    events = parse([text], ReplyFormat(tool_calls=GPT_OSS.tool_calls))

    assert events == [content(f"{header}Hm.<|end|>Yes.")]


def test_a_reply_without_end_of_reasoning_is_reasoning() -> None:
    assert parse(["Hm. </th"], QWEN3, in_reasoning=True) == [reasoning("Hm. </th")]


def test_a_format_without_anything_is_text() -> None:
    text = f" {QWEN_READ}\n"

    assert parse([text], ReplyFormat(), in_reasoning=True) == [content(text)]


def test_types_are_found_behind_references() -> None:
    tool = make_tool("f", a={"$ref": "#/$defs/word"}, b={"enum": ["1", "2"]}, c={"const": 1})
    tool["function"]["parameters"]["$defs"] = {"word": {"type": "string"}}
    body = "".join(f"<parameter={key}>\n1\n</parameter>\n" for key in "abc")

    events = parse([f"<tool_call>\n<function=f>\n{body}</function>"], QWEN3_CODER, tools=[tool])

    assert events == list(call(0, "f", '{"a": "1", "b": "1", "c": 1}'))

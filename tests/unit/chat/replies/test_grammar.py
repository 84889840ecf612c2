"""Grammars of replies in every format: what follows them is read as the call that was asked for."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.published import TEMPLATE_PATHS
from tests.unit.chat import reply_samples as samples
from tests.unit.chat.grammar_walks import Walker, is_valid

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, SpecialTokens
from milepost.chat.formats.harmony import HarmonyBody
from milepost.chat.formats.reply_events import CallArguments, CallEnd, CallStart
from milepost.chat.formats.reply_format import GrammarSpec, ReplyFormat, WrittenCall
from milepost.chat.formats.schema_resolver import Schemas
from milepost.chat.formats.tagged_calls import TaggedBody
from milepost.chat.replies.grammar import write_reply_grammar
from milepost.chat.replies.reply_plan import ReplyRules, ToolChoice, make_constraint
from milepost.chat.replies.schema_check import GrammarChecker, prepare_schema
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.template import ChatTemplate
from milepost.errors import InvalidRequest

FORMATS: dict[str, ReplyFormat] = {
    name.lower(): value for name, value in vars(samples).items() if isinstance(value, ReplyFormat)
}
CONTROLS: dict[str, tuple[str, ...]] = {
    "mistral_small": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "kimi": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    ),
    "deepseek": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>"),
    ),
    "gpt_oss": ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>"),
    "gemma4": ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    "qwen3": ("<think>", "</think>"),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "find": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {"type": "integer"},
            "mode": {"enum": ["all", "some"]},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "deep": {"type": "boolean"},
            "limits": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"type": "null"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        "required": ["path", "mode", "limits"],
        "additionalProperties": False,
        "$defs": {"number": {"type": "integer"}},
    },
    "find_all": {"type": "object", "properties": {}, "additionalProperties": False},
}
PLAIN_SCHEMAS = {
    **SCHEMAS,
    "find": {
        **SCHEMAS["find"],
        "properties": {
            **SCHEMAS["find"]["properties"],
            "limits": {**SCHEMAS["find"]["properties"]["limits"], "properties": {
                "a": {"type": "integer"}, "b": {"type": "null"}}},
        },
    },
}  # fmt: skip
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def make_tools(*, is_strict: bool) -> tuple[CallableTool, ...]:
    return tuple(CallableTool(name, schema, is_strict) for name, schema in SCHEMAS.items())


def make_walker(name: str, **fields: Any) -> Walker:
    controls = CONTROLS.get(name, ())
    specials = Walker('start: ""', controls).table.specials
    spec = GrammarSpec(reply_format=FORMATS[name], **{"reasoning": "possible", **fields})
    return Walker(write_reply_grammar(spec, specials), controls, hints_of(FORMATS[name]))


def hints_of(reply_format: ReplyFormat) -> list[str]:
    """Return texts that a reply has to get to."""
    calls = reply_format.tool_calls
    assert calls is not None
    # No others: text that holds parts of calls may be read as one.
    hints = {"<|end|>" if isinstance(calls.body, HarmonyBody) else calls.start_marker}
    if isinstance(calls.body, TaggedBody):
        hints.add(calls.body.value_end.strip() + calls.body.key_start.strip())
    return sorted(hints - {""})


def parse_calls(name: str, text: str) -> list[tuple[str, Any]]:
    return read_calls(FORMATS[name], text)


def read_calls(reply_format: ReplyFormat, text: str) -> list[tuple[str, Any]]:
    """Return the calls of a reply as names and values; fails for one that is not complete."""
    parser = ReplyParser(reply_format, tools=OPENAI_TOOLS)
    events = [*parser.feed(text), *parser.finish(is_truncated=False)]
    names = [event.name for event in events if isinstance(event, CallStart)]
    texts = [""] * len(names)
    for event in events:
        if isinstance(event, CallArguments):
            texts[event.index] += event.text
    assert sum(isinstance(event, CallEnd) for event in events) == len(names), text
    return list(zip(names, map(json.loads, texts), strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_is_read_as_one_that_follows_its_schema(name: str) -> None:
    tools = make_tools(is_strict=True)
    walker = make_walker(name, tools=tools, must_call=True, reasoning="none")
    replies = [reply for seed in range(12) if (reply := walker.walk(seed)) is not None]
    assert replies
    for reply in replies:
        calls = parse_calls(name, reply)
        assert calls, reply
        assert all(is_valid(value, PLAIN_SCHEMAS[called]) for called, value in calls), reply


@pytest.mark.parametrize("name", FORMATS)
def test_only_one_call_may_be_wanted_and_words_before_it(name: str) -> None:
    walker = make_walker(
        name,
        tools=make_tools(is_strict=True),
        must_call=True,
        takes_several=False,
        takes_words=True,
        reasoning="none",
    )
    for seed in range(6):
        reply = walker.walk(seed)
        assert reply is None or len(parse_calls(name, reply)) == 1, reply


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"llama3", "llama4"}))
def test_calls_that_a_reply_may_make_are_well_formed(name: str) -> None:
    walker = make_walker(name, tools=make_tools(is_strict=False))
    assert walker.accepts("") == (name != "gpt_oss")
    for seed in range(12):
        reply = walker.walk(seed)
        if reply is not None:
            parse_calls(name, reply)


# Read as calls, but no model that is held to the format can write them.
NOT_WELL_FORMED = {
    "keys-in-other-order",
    "line-breaks-and-foreign-escapes-in-a-string",
    "arguments-as-text",
    "no-arguments",
    "arguments-that-are-no-object",
    "gpt-oss-without-header",
    "lfm2",  # a tuple
    "lfm2-json",
    "two-calls-in-one-pair-of-tags",
}


@pytest.mark.parametrize(
    "sample",
    [one for one in samples.SAMPLES if "Warning" not in str(one.events)],
    ids=lambda one: one.name,
)
def test_replies_of_models_are_possible(sample: samples.ReplySample) -> None:
    tools = [
        CallableTool(tool["function"]["name"], tool["function"]["parameters"], is_strict=False)
        for tool in samples.TOOLS
    ]
    spec = GrammarSpec(
        reply_format=sample.reply_format,
        reasoning="open" if sample.in_reasoning else "possible",
        tools=tools,
    )
    grammar = write_reply_grammar(spec, SpecialTokens())
    is_possible = not grammar or Walker(grammar).taken_of(sample.text) == sample.text
    assert is_possible == (sample.name not in NOT_WELL_FORMED)


FIND_ALL = '<tool_call>\n{"name": "find_all", "arguments": {}}\n</tool_call>'


def test_a_call_that_must_come_may_have_reasoning_and_some_words_before_it() -> None:
    walker = make_walker("qwen3", tools=make_tools(is_strict=True), must_call=True)
    assert walker.accepts(FIND_ALL)
    assert walker.accepts(f"<think>\nSo.\n</think>\n\n{FIND_ALL}\n{FIND_ALL}")
    assert walker.taken_of(f"So.\n{FIND_ALL}") == ""
    assert not walker.accepts("<think>So.</think>")
    wordy = make_walker("qwen3", tools=make_tools(is_strict=True), must_call=True, takes_words=True)
    assert wordy.accepts(f"So.\n{FIND_ALL}")
    assert len(wordy.taken_of("so " * 300)) == 240


def test_reasoning_that_the_prompt_began_must_end_and_none_may_begin_where_it_is_off() -> None:
    tools = make_tools(is_strict=True)
    walker = make_walker("qwen3", tools=tools, must_call=True, reasoning="open")
    assert walker.accepts(f"So.\n</think>\n\n{FIND_ALL}")
    assert not walker.accepts(FIND_ALL)
    walker = make_walker("qwen3", tools=tools, must_call=True, reasoning="none")
    assert walker.accepts(FIND_ALL)
    assert walker.taken_of("<think>") == ""


def test_a_strict_tool_is_held_to_its_schema_and_another_one_is_not() -> None:
    call = '<tool_call>\n{"name": "find_all", "arguments": {"x": 1}}\n</tool_call>'
    strict = make_walker("qwen3", tools=make_tools(is_strict=True))
    loose = make_walker("qwen3", tools=make_tools(is_strict=False))
    assert strict.taken_of(call).endswith("{")
    assert loose.accepts(call)
    assert loose.taken_of(call.replace("find_all", "fund")).endswith('"f')


@pytest.mark.parametrize("name", ["qwen3", "qwen25"])
def test_only_one_call_where_several_are_not_wanted(name: str) -> None:
    one = make_walker(name, tools=make_tools(is_strict=False), takes_several=False)
    several = make_walker(name, tools=make_tools(is_strict=False))
    text = f"First\n{FIND_ALL}\n"
    assert one.accepts(text)
    assert one.taken_of(text + FIND_ALL) == text
    assert several.accepts(f"{text}then\n{FIND_ALL}\nlast")


def test_a_marker_in_reasoning_begins_no_call() -> None:
    walker = make_walker("qwen3", tools=make_tools(is_strict=False), reasoning="open")
    assert walker.accepts(f"Not <tool_call> yet.</think>\n{FIND_ALL}")
    assert walker.accepts("Not <tool_call> yet, and no end")
    walker = make_walker("qwen3", tools=make_tools(is_strict=False))
    assert walker.accepts(f"<think>Not <tool_call> yet.</think>\n{FIND_ALL}")
    assert walker.taken_of("Not <tool_call> yet") == "Not <tool_call> "


def test_a_call_without_a_marker_is_held_to_its_schema_where_it_is_strict() -> None:
    strict = make_walker("llama3", tools=make_tools(is_strict=True))
    assert strict.accepts('{"name": "find_all", "parameters": {}}')
    assert strict.accepts("Text with {braces}.")
    assert strict.taken_of('{"name": "other"') == '{"name": "'
    spec = GrammarSpec(
        reply_format=samples.LLAMA3, reasoning="possible", tools=make_tools(is_strict=False)
    )
    assert write_reply_grammar(spec, SpecialTokens()) == ""


def test_one_call_without_a_marker_is_one_where_several_are_not_wanted() -> None:
    walker = make_walker("llama3", tools=make_tools(is_strict=False), takes_several=False)
    call = '{"name": "find_all", "parameters": {"any": 1}}'
    assert walker.accepts(call)
    assert walker.taken_of(f"{call}; {call}") == call
    assert walker.accepts("Text.")


def test_a_call_without_a_marker_is_of_an_allowed_tool_where_there_are_others() -> None:
    tools = make_tools(is_strict=False)[:1]
    walker = make_walker("llama3", tools=tools, is_narrowed=True)
    assert walker.accepts(f'{{"name": "{tools[0].name}", "parameters": {{}}}}')
    assert walker.taken_of('{"name": "other"') == '{"name": "'


@pytest.mark.parametrize(
    ("others", "takes_text"),
    [
        ([{"type": "string"}], True),
        ([{"type": "integer"}], False),
        ([{"$ref": "#/$defs/A"}] * 20 + [{"oneOf": [{"$ref": "#/$defs/A"}]}], False),
    ],
)
def test_alternatives_that_refer_to_themselves_are_followed_once(
    others: list[dict[str, Any]], takes_text: bool
) -> None:
    part = {"anyOf": [{"$ref": "#/$defs/A"}, *others]}
    schemas = Schemas({"$defs": {"A": part}})
    assert ("string" in schemas.types({"$ref": "#/$defs/A"})) == takes_text


@pytest.mark.parametrize("name", ["llama4", "gemma4", "mistral_nemo"])
def test_a_schema_that_refers_to_itself_in_many_places_is_written_once_for_each_depth(
    name: str,
) -> None:
    part = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/A"} for i in range(40)}}
    other = {"anyOf": [{"$ref": "#/$defs/A"}, *[{"$ref": "#/$defs/B"}] * 40]}
    schema = {**part, "$defs": {"A": {**part, "properties": {"b": other}}, "B": other}}
    reply_format = FORMATS[name]
    spec = GrammarSpec(
        reply_format=reply_format,
        reasoning="none",
        tools=[CallableTool("f", schema, True)],
        must_call=True,
    )
    assert len(write_reply_grammar(spec, SpecialTokens())) < 100_000


def many_arguments(num: int, *, are_required: bool) -> CallableTool:
    names = [f"p{i}" for i in range(num)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names if are_required else [],
        "additionalProperties": False,
    }
    return CallableTool("f", schema, True)


@pytest.mark.parametrize("are_required", [False, True])
def test_a_tagged_call_may_have_many_arguments(are_required: bool) -> None:
    tool = many_arguments(128, are_required=are_required)
    walker = make_walker("qwen3_coder", tools=[tool], must_call=True)
    start = "<tool_call>\n<function=f>\n<parameter="
    assert walker.taken_of(f"{start}p127>") == start + ("p" if are_required else "p127>")


@pytest.mark.parametrize("name", ["qwen3_coder", "llama4", "gemma4"])
def test_more_arguments_than_a_grammar_can_hold_are_refused(name: str) -> None:
    loose = replace(many_arguments(129, are_required=True), is_strict=False)
    make_walker(name, tools=[loose], must_call=True)
    with pytest.raises(InvalidRequest, match="have 129 properties in one object"):
        make_walker(name, tools=[many_arguments(129, are_required=True)], must_call=True)


def test_a_tagged_call_may_have_an_argument_that_refers_to_itself() -> None:
    part = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/A"}},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"A": part},
    }
    walker = make_walker("qwen3_coder", tools=[CallableTool("f", schema, True)], must_call=True)
    assert walker.accepts(
        "<tool_call>\n<function=f>\n<parameter=x>\nab\n</parameter>\n</function>\n</tool_call>"
    )


VALUE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("name", "reply", "other"),
    [
        ("qwen3", '<think>So.</think>\n{"a": 1}', '{"b": 1}'),
        ("llama3", '{"a": 1, "b": [null]}', "text"),
        ("command_r7b", '<|START_RESPONSE|>{"a": 1}<|END_RESPONSE|>', '{"a": 1}'),
        ("gpt_oss", '<|channel|>final <|constrain|>json<|message|>{"a": 1}', '{"a": 1}'),
        (
            "gpt_oss",
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
            '<|channel|>final<|message|>{"a": 1}',
            "<|channel|>final<|message|>Yes.",
        ),
    ],
)
def test_text_follows_a_schema_behind_reasoning(name: str, reply: str, other: str) -> None:
    walker = make_walker(name, schema=VALUE)
    assert walker.accepts(reply)
    assert not walker.accepts(other)


def test_a_reply_may_be_a_value_or_a_call() -> None:
    walker = make_walker("qwen25", schema=VALUE, tools=make_tools(is_strict=False))
    assert walker.accepts('{"a": 1}')
    assert walker.accepts(FIND_ALL)
    assert not walker.accepts("Yes.")


def test_nothing_is_asked_of_plain_text() -> None:
    spec = GrammarSpec(reply_format=samples.QWEN3, reasoning="possible")
    assert write_reply_grammar(spec, SpecialTokens()) == ""


def test_a_control_token_is_not_the_text_that_spells_it() -> None:
    walker = make_walker("mistral_small", tools=make_tools(is_strict=True), must_call=True)
    call = "[TOOL_CALLS]find_all[CALL_ID]abc123def[ARGS]{}"
    assert walker.accepts(call)
    assert walker.table.encode(call)[0] == 256
    spelled = make_walker("mistral_nemo", tools=make_tools(is_strict=True), must_call=True)
    assert spelled.accepts('[TOOL_CALLS][{"name": "find_all", "arguments": {}, "id": "abc"}]')


def test_nothing_stands_behind_a_token_that_ends_the_generation() -> None:
    specials = SpecialTokens.make({"<|call|>": 256, "<|message|>": 257}, frozenset({256}))
    writer = GrammarWriter(specials)
    assert writer.exact('a"<|message|>b<|call|>c') == r'"a\"" <[257]> "b"'


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_a_forced_call_in_the_format_of_a_published_template(path: Path) -> None:
    reply_format = ChatTemplate(path.read_text(encoding="utf-8"), name=path.stem).reply_format
    if reply_format.tool_calls is None:
        pytest.skip("the template shows no calls")
    spec = GrammarSpec(
        reply_format=reply_format,
        reasoning="none",
        tools=make_tools(is_strict=True),
        must_call=True,
    )
    grammar = write_reply_grammar(spec, SpecialTokens())
    walker = Walker(grammar, hints=hints_of(reply_format))
    for reply in filter(None, map(walker.walk, range(3))):
        calls = read_calls(reply_format, reply)
        assert calls
        assert all(is_valid(value, PLAIN_SCHEMAS[called]) for called, value in calls), reply


# Escapes of JSON, and a name and a value that stand for themselves, too.
ESCAPED = {
    r"\u00e9": "é",
    r"\u2019": "’",
    r"\ud83d\ude00": "😀",
    r"\/": "/",
    r"\u003c": "<",
    r"\u0001": "\x01",
    r"\b\f\n\r\t": "\b\f\n\r\t",
    r"\"\\": '"\\',
}
# In these the arguments are JSON; where it stands in a string of JSON, it is escaped once more.
JSON_FORMATS = (
    *("qwen3", "llama3", "mistral_nemo", "mistral_small", "nemotron", "command_r7b", "wrapped"),
    *("kimi", "deepseek", "deepseek_r1", "gpt_oss"),
)
TEXT_TOOL = CallableTool(
    "find",
    {
        "type": "object",
        "properties": {"tëxt/a": {"type": "string"}, "sized": {"type": "string", "maxLength": 16}},
        "required": ["tëxt/a"],
    },
    is_strict=True,
)


def write_call(name: str, tool: str, arguments_text: str) -> str:
    """Return a reply with a call in a format, with an id where it has any."""
    calls = FORMATS[name].tool_calls
    assert calls is not None
    call = WrittenCall(tool, json.loads(arguments_text, strict=False), arguments_text, "abc123def")
    return calls.write_calls([call]).replace("find:abc123def", "find:0")


@pytest.mark.parametrize("escape", ESCAPED)
@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("name", JSON_FORMATS)
def test_strings_may_have_every_escape_of_json(name: str, is_strict: bool, escape: str) -> None:
    text = f'{{"t\\u00ebxt\\/a": "{escape}", "sized": "{escape}", "t/b": ["{escape}"]}}'
    reply = write_call(name, "find", text)
    tool = replace(TEXT_TOOL, is_strict=is_strict)
    walker = make_walker(name, tools=[tool], must_call=True, reasoning="none")
    assert walker.accepts(reply)
    value = ESCAPED[escape]
    wanted = {"tëxt/a": value, "sized": value, "t/b": [value]}
    assert parse_calls(name, reply) == [("find", wanted)]


@pytest.mark.parametrize("name", JSON_FORMATS)
@pytest.mark.parametrize("bad", ["\n", "\x01", r"\ud83d", r"\x41", r"\u00g9"])
def test_strings_have_no_control_characters_and_no_halves(name: str, bad: str) -> None:
    good = write_call(name, "find", '{"tëxt/a": "good"}')
    reply = good.replace("good", json.dumps(bad)[1:-1] if name == "wrapped" else bad)
    walker = make_walker(name, tools=[TEXT_TOOL], must_call=True, reasoning="none")
    assert walker.accepts(good)
    assert not walker.accepts(reply)


def test_a_text_of_json_may_have_every_escape() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["é/", "b"]}, "c": {"const": ["<"]}}}
    walker = make_walker("qwen25", schema={**schema, "required": ["a", "c"]})
    for text in (r'{"a": "\u00e9\/", "c": ["\u003C"]}', '{"\\u0061": "b", "c": ["<"]}'):
        assert walker.accepts(text) == ("0061" not in text)  # what needs no escape has none
    assert walker.accepts('{"a": "é/", "c": ["<"], "d": {"e": "\\u00e9"}}')
    assert not walker.accepts('{"a": "c", "c": ["<"]}')


ORDERED = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_arguments_may_be_sorted_unless_the_tool_is_strict(name: str) -> None:
    fields: dict[str, Any] = {"must_call": True, "reasoning": "none"}
    strict = make_walker(name, tools=[CallableTool("find", ORDERED, True)], **fields)
    tool = CallableTool("find", ORDERED, True, keeps_order=False)
    loose = make_walker(name, tools=[tool], **fields)
    for keys in ("ba", "ab"):
        reply = write_call(name, "find", json.dumps(dict.fromkeys(keys, 1)))
        assert loose.taken_of(reply) == reply
        assert (strict.taken_of(reply) == reply) == (keys == "ba")
    assert not loose.accepts(write_call(name, "find", '{"a": 1}'))


def wide_and_deep(width: int, depth: int, *, are_required: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        names = [f"p{i}" for i in range(width)]
        parts = {name: {"type": "string"} for name in names}
        required = names if are_required else []
        schema = {
            "type": "object",
            "properties": {**parts, "last": schema},
            "required": required,
        }
    return schema


@pytest.mark.parametrize(("width", "depth"), [(127, 30), (60, 30), (3, 30), (1500, 2)])
@pytest.mark.parametrize("are_required", [False, True])
def test_no_schema_is_too_much_for_the_grammar_library(
    width: int, depth: int, are_required: bool
) -> None:
    schema = wide_and_deep(width, depth, are_required=are_required)
    checker = GrammarChecker()
    for name in ("qwen3", "qwen3_coder", "gemma4", "llama4", "wrapped"):
        with contextlib.suppress(InvalidRequest):  # it may be refused
            prepare_schema(schema, "s", checker, is_exact=True)
            tools = [CallableTool("f", schema, True)]
            rules = ReplyRules(tools=tools, choice=ToolChoice("required"))
            make_constraint(rules, FORMATS[name], "none", SpecialTokens(), checker)

"""A format that nothing but its class and the table names is learnt, read, written and held to."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.unit.chat.grammar_walks import Walker, is_valid
from tests.unit.chat.reply_samples import TOOLS, call, content, merge, reasoning
from tests.unit.chat.reply_templates import template as make_source

import milepost
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.formats.call_formats import CALL_FORMATS, recognise_calls, recognise_reply
from milepost.chat.formats.call_schemas import CallableTool, properties_of
from milepost.chat.formats.call_texts import bare_pattern, read_surroundings
from milepost.chat.formats.grammar_writer import GrammarWriter, SpecialTokens, list_in_order, seq
from milepost.chat.formats.json_text import ArgumentWriter, copy_arguments, copy_json, quote
from milepost.chat.formats.probe_texts import ANSWER, KEYS, NAMES, VALUES, CallTexts, Probe, user
from milepost.chat.formats.reply_events import ReplyEvent
from milepost.chat.formats.reply_format import (
    Affix,
    CallBody,
    CallReading,
    GrammarSpec,
    ReasoningFormat,
    ReplyFormat,
    ToolCallFormat,
    WrittenCall,
)
from milepost.chat.formats.text_source import Steps, Stops
from milepost.chat.replies.grammar import write_reply_grammar
from milepost.chat.replies.reply_plan import find_shown_tokens
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.template import ChatTemplate

SOURCE = Path(milepost.__file__).parent
# <run>read(path := "src/a.py"; line := 3)</run>
TEMPLATE = make_source(
    "{{ message.content }}{% for call in message.tool_calls %}"
    "{{ '<run>' ~ call.function.name ~ '(' }}"
    "{% for key, value in call.function.arguments | items %}"
    "{{ ('; ' if not loop.first else '') ~ key ~ ' := ' ~ (value | tojson) }}{% endfor %}"
    "{{ ')</run>' }}{% endfor %}"
)
READ = '<run>read(path := "src/a.py"; line := 3)</run>'


@dataclass(frozen=True, slots=True)
class ToyBody(CallBody):
    """`NAME(KEY := VALUE; …)`, the values as JSON."""

    name: ClassVar = "toy"

    assign: str = ":="

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.assign,)

    def read_calls(self, reading: CallReading) -> Steps[None]:
        source, writer = reading.source, reading.writer
        name, _ = yield from source.read_until(Stops(["("]), 64)
        writer.begin_call(name.strip())
        arguments = ArgumentWriter(writer.arguments)
        is_closed = yield from source.match_after_space((")",))
        while not is_closed:
            key, _ = yield from source.read_until(Stops([self.assign]), 64)
            arguments.key(key.strip())
            yield from source.skip_space()
            yield from copy_json(source, arguments.write)
            is_closed = yield from source.match_after_space((")",))
            if not is_closed:
                yield from source.expect_after_space(";")
        arguments.end()
        writer.end_call()

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        pairs = [
            (
                seq(writer.plain(f"{one.name} {self.assign} "), writer.json(one.schema)),
                one.is_required,
            )
            for one in properties_of(tool.schema)
        ]
        listed = list_in_order(pairs, writer.plain("; "), writer) if pairs else ""
        return seq(writer.plain(f"{tool.name}("), listed, writer.plain(")"))

    def write_call_text(self, call: WrittenCall) -> str:
        pairs = (f"{key} {self.assign} {quote(value)}" for key, value in call.arguments.items())
        return f"{call.name}({'; '.join(pairs)})"

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        around = read_surroundings(texts, _find_call)
        assign = texts.one.partition(KEYS[0][0])[2].partition('"')[0].strip()
        if around is None or not assign:
            return None
        several = texts.two is not None
        return ToolCallFormat(cls(assign), around.section, around.call, takes_several=several)

    def probe_pattern(self, number: int) -> str:
        values = dict(zip(KEYS[number], VALUES[number], strict=True))
        return bare_pattern(self.write_call_text(WrittenCall(NAMES[number], values, "")))


def _find_call(text: str, number: int) -> tuple[int, int] | None:
    start = text.find(NAMES[number] + "(")
    end = text.find(")", start)
    return (start, end + 1) if min(start, end) >= 0 else None


@dataclass(frozen=True, slots=True)
class LetterBody(CallBody):
    """A reply is a letter: "THOUGHT;TEXT;", or "THOUGHT;NAME{…};"."""

    name: ClassVar = "letter"
    reads_whole_reply: ClassVar = True

    @property
    def markers(self) -> tuple[str, ...]:
        return (";",)

    def read_calls(self, reading: CallReading) -> Steps[None]:
        source, writer = reading.source, reading.writer
        yield from source.copy_until(Stops([";"]), writer.reasoning)
        writer.end_reasoning()
        text, stop = yield from source.read_until(Stops([";", "{"]), 64)
        if stop == "{" and text in reading.parameters:
            source.back(1)
            writer.begin_call(text)
            yield from copy_arguments(source, writer.arguments)
            writer.end_call()
        else:
            writer.content(text)
        yield from source.expect_after_space(";")
        source.unmark()
        yield from source.copy_until(Stops([]), writer.content)

    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        return seq(writer.plain(tool.name), writer.json(tool.schema))

    def write_whole_grammar(self, spec: GrammarSpec, writer: GrammarWriter) -> str:
        (tool,) = spec.tools
        call = self.write_call_grammar(tool, ToolCallFormat(self), writer)
        return seq(writer.until(";"), call, writer.plain(";"))

    def write_call_text(self, call: WrittenCall) -> str:
        return f";{call.name}{call.arguments_text};"

    @classmethod
    def recognise_reply(cls, probe: Probe, reasoning: ReasoningFormat | None) -> ReplyFormat | None:
        talk = probe.history(user(), {"role": "assistant", "content": ANSWER}) or ""
        if f";{ANSWER};" not in talk:
            return None
        return ReplyFormat(ReasoningFormat("", ";"), ToolCallFormat(cls()))


def probe(source: str) -> Probe:
    """Return a template to put questions to."""
    template = ChatTemplate(source, name="test")

    def render(
        conversation: Conversation, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        return template.render(
            conversation, add_generation_prompt=add_generation_prompt, kwargs=variables
        ).text

    return Probe(source, render)


def parse(reply_format: ReplyFormat, text: str) -> list[ReplyEvent]:
    """Return the events of a reply, with ids `made-0`."""
    parser = ReplyParser(reply_format, tools=TOOLS, make_id=lambda: "made-0")
    events = [event for char in text for event in parser.feed(char)]
    return merge([*events, *parser.finish(is_truncated=False)])


LEARNT = ToolCallFormat(ToyBody(), call=Affix("<run>", "</run>"))


def test_a_new_format_is_learnt_from_a_template() -> None:
    asked = probe(TEMPLATE)
    known = recognise_calls(asked, None)
    assert known is None or not isinstance(known.body, ToyBody)
    assert recognise_calls(asked, None, (ToyBody, *CALL_FORMATS)) == LEARNT
    assert recognise_calls(probe(TEMPLATE.replace(" := ", " ≔ ")), None, (ToyBody,)) == (
        ToolCallFormat(ToyBody("≔"), call=LEARNT.call)
    )


def test_a_new_format_that_does_not_explain_the_calls_is_not_taken() -> None:
    assert recognise_calls(probe(TEMPLATE.replace("; ", ", ")), None, (ToyBody,)) is None


def test_calls_of_a_new_format_are_read() -> None:
    events = parse(ReplyFormat(tool_calls=LEARNT), f"I look.\n{READ}")
    assert events == [content("I look."), *call(0, "read", '{"path": "src/a.py", "line": 3}')]


def test_calls_of_a_new_format_are_written() -> None:
    arguments = {"path": "src/a.py", "line": 3}
    assert LEARNT.write_calls([WrittenCall("read", arguments, json.dumps(arguments))]) == READ


def test_replies_are_held_to_a_new_format() -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path"],
    }
    reply_format = ReplyFormat(tool_calls=LEARNT)
    spec = GrammarSpec(
        reply_format=reply_format,
        reasoning="none",
        tools=[CallableTool("read", schema, is_strict=True)],
        must_call=True,
    )
    walker = Walker(write_reply_grammar(spec, SpecialTokens()))
    assert walker.accepts(READ)
    assert walker.taken_of("<run>read(line := 3)") == "<run>read("
    for reply in filter(None, map(walker.walk, range(6))):
        _, arguments, _ = parse(reply_format, reply)[:3]
        assert is_valid(json.loads(arguments.text), schema)  # type: ignore[union-attr]


def test_a_new_format_may_be_that_of_whole_replies() -> None:
    source = make_source("{{ ';' ~ message.content ~ ';' }}")
    reply_format = recognise_reply(probe(source), None, (LetterBody, *CALL_FORMATS))
    assert recognise_reply(probe(source), None) is None
    assert reply_format is not None
    assert parse(reply_format, "So;Yes.;") == [reasoning("So"), content("Yes.")]
    read = [reasoning("So"), *call(0, "read", '{"a": 1}')]
    assert parse(reply_format, 'So;read{"a": 1};') == read
    spec = GrammarSpec(
        reply_format=reply_format,
        reasoning="possible",
        tools=[CallableTool("read", {"type": "object"}, is_strict=True)],
    )
    walker = Walker(write_reply_grammar(spec, SpecialTokens()))
    assert walker.accepts('So;read{"a": 1};')
    assert find_shown_tokens(reply_format, has_tools=False, controls={";": 7}) == (7,)


def test_formats_have_names_of_their_own() -> None:
    assert len({body.name for body in CALL_FORMATS}) == len(CALL_FORMATS)


def test_nothing_asks_of_which_format_a_body_is() -> None:
    names = {body.__name__ for body in CALL_FORMATS}
    for path in SOURCE.rglob("*.py"):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)) if names & set(re.findall(r"\w+", source)) else ():
            asked = isinstance(node, ast.MatchClass)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                asked = node.func.id in ("isinstance", "issubclass", "type")
            named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            assert not (asked and named & names), f"{path}, line {getattr(node, 'lineno', 0)}"

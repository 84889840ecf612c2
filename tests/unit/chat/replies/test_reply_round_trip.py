"""Replies of a history, rendered by a template, are read again as what they were.

For every published template and every family of ours: reasoning, text and calls go into a history,
the reply is cut out of the prompt, and the parser must give back what was put in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from tests.published import TEMPLATE_PATHS
from tests.unit.chat import families
from tests.unit.chat.formats.test_reply_format import LEARNT
from tests.unit.chat.reply_samples import TOOLS, merge

from milepost.api.openai.messages import parse_conversation
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.replies.reply_plan import is_reasoning_open
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate, SpecialTexts

QUESTION = "Please edit it."
FOLLOWING = "Thank you."
REASONING = "First look,\nthen edit."
CONTENT = "I look at it."
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "edit",
        {
            "path": "12",
            "text": '  if "a" < b:\n\n\treturn {é: [😀]}',
            "ranges": [1, -2],
            "options": {"x": {"y": True}, "z": []},
            "dry": False,
        },
    ),
    ("list_files", {}),
    ("read", {"path": "src/a.py", "line": 3}),
)


@dataclass(frozen=True)
class Reply:
    """What a reply holds."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    def as_message(self) -> dict[str, Any]:
        """Return the reply as a client sends it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"abcdefgh{i}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for i, (name, arguments) in enumerate(self.calls)
            ]
        return message


REPLIES = {
    "text": Reply(content=CONTENT),
    "call": Reply(calls=CALLS[:1]),
    "calls": Reply(calls=CALLS),
    "text and calls": Reply(content=CONTENT, calls=CALLS),
    "reasoning and text": Reply(REASONING, CONTENT),
    "reasoning and calls": Reply(REASONING, calls=CALLS),
    "all": Reply(REASONING, CONTENT, CALLS),
}
CALL_END = "<|tool_response>"  # what Gemma 4 ends a turn with that waits for results
WITH_TEXT = ("text", "text and calls", "reasoning and text", "all")
WITH_CALLS = ("call", "calls", "text and calls", "reasoning and calls", "all")
WITH_BOTH = ("text and calls", "all")
# Replies that templates write in a way from which they cannot be read, and why.
EXCEPTIONS = {
    "NVIDIA-Nemotron-Nano-v2": (WITH_TEXT, "text stands inside of the <think> of a prompt"),
    "openai-gpt-oss-120b": (WITH_BOTH, "text beside a call is written as reasoning"),
    "like llama3": (WITH_BOTH, "a call without a marker is one only where a reply begins"),
    "like gpt-oss": (WITH_BOTH, "text beside a call is a reply of its own"),
    "meta-llama-Llama-3.1-8B-Instruct": (WITH_BOTH, "text beside a call is a reply of its own"),
    "meta-llama-Llama-3.3-70B-Instruct": (WITH_BOTH, "text beside a call is a reply of its own"),
}


def sources() -> dict[str, str]:
    """Return all templates by name."""
    found = {path.stem: path.read_text("utf-8") for path in TEMPLATE_PATHS}
    found |= {f"built-in {name}": source for name, source in BUILTIN_TEMPLATES.items()}
    found["chatml with tools"] = families.CHATML_TOOLS
    found |= {f"like {case.id}": str(case.values[0]) for case in LEARNT}
    return found


def cases() -> Iterator[Any]:
    """Yield all templates with all replies."""
    for name, source in sources().items():
        for kind, reply in REPLIES.items():
            kinds, reason = EXCEPTIONS.get(name, ((), ""))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if kind in kinds else []
            yield pytest.param(source, reply, id=f"{name}: {kind}", marks=marks)


@pytest.mark.parametrize(("source", "reply"), list(cases()))
def test_a_reply_of_a_history_is_read_as_it_was(source: str, reply: Reply) -> None:
    template = load(source)
    calls = template.reply_format.tool_calls
    num_calls = 0 if calls is None else len(reply.calls) if calls.takes_several else 1
    reply = replace(reply, calls=reply.calls[:num_calls])
    text, in_reasoning = cut_reply(template, reply)
    # What the template leaves out cannot be read.
    if reply.reasoning and REASONING not in text:
        reply = replace(reply, reasoning="")
    if reply.content and CONTENT not in text:
        reply = replace(reply, content="")
    parser = ReplyParser(template.reply_format, in_reasoning=in_reasoning, tools=TOOLS)
    events = merge([*parser.feed(text), *parser.finish(is_truncated=False)])
    got = Reply(
        "".join(event.text for event in events if isinstance(event, ReasoningText)),
        # Some templates write a space after the generation prompt, or end turns with white space.
        "".join(event.text for event in events if isinstance(event, ContentText)).strip(" \n"),
        tuple(read_calls(events)),
    )
    assert got == reply


@cache  # probed once for all its replies
def load(source: str) -> ChatTemplate:
    """Return a template."""
    return ChatTemplate(source, name="test", texts=SpecialTexts("<s>", "</s>"))


def cut_reply(template: ChatTemplate, reply: Reply) -> tuple[str, bool]:
    """Return the reply as the template writes it, and whether it begins inside of reasoning."""
    prompt, whole = render(template), render(template, reply.as_message(), is_history=True)
    trailer = render(template, Reply(content="mpanswer").as_message(), is_history=True)
    # A marker that both begin with, as "<think>" and "<TOOLCALL>", is not shared.
    shared = os.path.commonprefix([prompt, whole])
    if shared != prompt:
        shared = shared.rstrip("<|[")
    text = whole[len(shared) :]
    trailer = trailer.rpartition("mpanswer")[2].removeprefix(template.reply_format.content.end)
    calls = template.reply_format.tool_calls
    if calls is not None and calls.body.reads_whole_reply:  # of several messages, which end alike
        text = text.removesuffix(trailer)
    else:
        for end in (trailer.strip(), CALL_END):
            text = text.partition(end)[0] if end else text  # the model stops there
    reasoning = template.reply_format.reasoning
    if reasoning is not None and text.startswith(reasoning.end):
        return text, True  # the history closes at once what the prompt had opened
    return text, is_reasoning_open(shared.rpartition(QUESTION)[2], reasoning)


def render(template: ChatTemplate, *replies: dict[str, Any], is_history: bool = False) -> str:
    """Return a conversation with the question and replies."""
    conversation = parse_conversation([{"role": "user", "content": QUESTION}, *replies], TOOLS)
    return template.render(conversation, add_generation_prompt=not is_history).text


def read_calls(events: list[ReplyEvent]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of a reply."""
    name = ""
    for event in events:
        if isinstance(event, CallStart):
            name, arguments = event.name, ""
        elif isinstance(event, CallArguments):
            arguments += event.text
        elif isinstance(event, CallEnd):
            yield name, json.loads(arguments)

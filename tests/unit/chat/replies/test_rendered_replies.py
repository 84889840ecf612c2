"""Calls that templates render are read again as what they were."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.published import TEMPLATE_PATHS
from tests.unit.chat.reply_samples import TOOLS, merge
from tests.unit.chat.reply_templates import GLM, HERMES, QWEN_XML, THINK, calls
from tests.unit.chat.reply_templates import template as make_template

from milepost.api.openai.messages import parse_conversation
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ParseWarning,
    ReplyEvent,
)
from milepost.chat.replies.reply_plan import is_reasoning_open
from milepost.chat.replies.stream_parser import ReplyParser
from milepost.chat.templates.template import ChatTemplate

QUESTION = {"role": "user", "content": "Edit it."}
CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        "edit",
        {
            "path": "12",
            "text": '  if "a" < b: \\n\n\t</parameter>é😀\n',
            "ranges": [1, -2],
            "options": {"x": {"y": True}, "z": []},
            "dry": False,
        },
    ),
    ("list_files", {}),
    ("read", {"path": "src/a.py", "line": 3}),
]

OWN = {
    "hermes": HERMES,
    "qwen-xml": QWEN_XML,
    "glm": GLM,
    "list": calls(
        "(', ' if NUMBER else '') ~ '{\"name\": \"' ~ NAME ~ '\", \"arguments\": ' ~ ARGUMENTS"
        " ~ '}'",
        before="'<CALLS>['",
        after="']</CALLS>'",
    ),
    "kimi": calls(
        "'<|call|>functions.' ~ NAME ~ ':' ~ NUMBER ~ '<|arguments|>' ~ ARGUMENTS ~ '<|call_end|>'",
        before="'<|calls|>'",
        after="'<|calls_end|>'",
    ),
    "mistral": calls("'[TOOL_CALLS]' ~ NAME ~ '[CALL_ID]' ~ ID ~ '[ARGS]' ~ ARGUMENTS"),
}


@pytest.mark.parametrize("name", OWN)
def test_calls_of_own_templates_are_read_again(name: str) -> None:
    check_calls(ChatTemplate(make_template(THINK + OWN[name]), name=name))


@pytest.mark.parametrize("path", TEMPLATE_PATHS, ids=lambda path: path.stem)
def test_calls_of_published_templates_are_read_again(path: Path) -> None:
    check_calls(ChatTemplate(path.read_text("utf-8"), name=path.stem))


def check_calls(template: ChatTemplate) -> None:
    """Check that what the template renders of calls is read as these calls."""
    calls = template.reply_format.tool_calls
    assert calls is not None
    wanted = CALLS if calls.takes_several else CALLS[:1]
    text, in_reasoning = render_reply(template, wanted)
    parser = ReplyParser(template.reply_format, in_reasoning=in_reasoning, tools=TOOLS)
    events = merge([*parser.feed(text), *parser.finish(is_truncated=False)])

    assert read_calls(events) == wanted
    assert sum(isinstance(event, CallEnd) for event in events) == len(wanted)
    assert not any(isinstance(event, ParseWarning) for event in events)


def render_reply(
    template: ChatTemplate, calls: list[tuple[str, dict[str, Any]]]
) -> tuple[str, bool]:
    """Return what a model would have written, and whether it begins inside reasoning."""
    entries = [
        {
            "id": f"abcdefgh{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": entries}
    prompt = template.render(parse_conversation([QUESTION], TOOLS)).text
    history = parse_conversation([QUESTION, reply], TOOLS)
    whole = template.render(history, add_generation_prompt=False).text
    # A marker that both begin with, as "<think>" and "<TOOLCALL>", is not shared.
    shared = os.path.commonprefix([prompt, whole]).rstrip("<|[")
    question_end = shared.rindex(QUESTION["content"])
    return whole[len(shared) :], is_reasoning_open(
        shared[question_end:], template.reply_format.reasoning
    )


def read_calls(events: list[ReplyEvent]) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append((event.name, {}))
        elif isinstance(event, CallArguments):
            calls[-1] = (calls[-1][0], json.loads(event.text))
    return calls

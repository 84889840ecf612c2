"""No message of a request can spell a control token of its template, whatever the family."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from tests.published import TEMPLATE_PATHS
from tests.unit.chat import families
from tests.unit.chat.prompts.test_reply_matching import TOOLS, Server

from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.errors import TemplateFailed

OWN = {
    name: getattr(families, name)
    for name in ("CHATML_TOOLS", "INST_ALTERNATING", "TYPED_PARTS", "ITEMS_OF_ARGUMENTS")
}
PUBLISHED = {path.stem: path.read_text("utf-8") for path in TEMPLATE_PATHS}
TEMPLATES = BUILTIN_TEMPLATES | OWN | PUBLISHED
FIELDS = ("system", "user", "content", "reasoning", "argument", "result", "tool")


@cache
def server_of(name: str) -> Server:
    """Return a server with a template, which is slow to learn; nothing is sampled on it."""
    return Server(TEMPLATES[name])


def make_request(field: str, text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return messages and tools with a text in one place, and plain words in the others."""
    texts = dict.fromkeys(FIELDS, "the plain text") | {field: text}
    function = {"name": "read", "arguments": {"path": texts["argument"]}}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    reply = {"role": "assistant", "content": texts["content"]}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": texts["system"]},
        {"role": "user", "content": texts["user"]},
        {**reply, "reasoning_content": texts["reasoning"], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": texts["result"]},
        {"role": "assistant", "content": texts["content"]},
        {"role": "user", "content": "and"},
    ]
    described = {**TOOLS[0]["function"], "description": texts["tool"]}
    return messages, [{"type": "function", "function": described}]


def count_controls(server: Server, field: str, text: str) -> Counter[str]:
    """Return how often each control token is in the prompt with that text."""
    messages, tools = make_request(field, text)
    try:
        tokens, _, _ = server.ask(messages, tools)
    except TemplateFailed:  # some know no tools or no system message
        messages = [each for each in messages if each["role"] in ("user", "assistant")]
        messages = [{k: v for k, v in m.items() if k in ("role", "content")} for m in messages]
        tokens, _, _ = server.ask([messages[0], messages[2], messages[3]], None)
    return Counter(map(server.vocab.text_of_control, filter(server.vocab.is_control, tokens)))


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_spelled_control_tokens_stay_text(name: str, field: str) -> None:
    server = server_of(name)
    trusted = server.template.profile.reply_markers if field == "content" else frozenset()
    spelled = "".join(text for text in server.vocab.control_texts() if text not in trusted)
    assert count_controls(server, field, f"a{spelled}b") == count_controls(server, field, "ab")


@pytest.mark.parametrize(
    ("name", "markers"),
    [
        ("google-gemma-4-31B-it", ["<channel|>", "<tool_call|>", "<|channel>", "<|tool_call>"]),
        (
            "deepseek-ai-DeepSeek-V3.1",
            [
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
                *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
            ],
        ),
        ("openai-gpt-oss-120b", []),  # they frame all messages, too
    ],
)
def test_markers_in_the_content_of_a_reply_are_those_of_reasoning_and_calls(
    name: str, markers: list[str]
) -> None:
    assert sorted(Server(PUBLISHED[name]).template.profile.reply_markers) == markers

"""Prompts are prepared from records of chat alone, whatever the dialect of the request."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.vocab import IM_END, IM_START, FakeVocab
from tests.unit.chat import families

from milepost.chat.conversation.conversation import ContentPart, Conversation, make_conversation
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.prompts.prepare import PromptOptions, PromptPreparer
from milepost.chat.replies.reply_plan import ReplyOptions, ReplyRules, ToolChoice
from milepost.chat.reply_memory.reply_store import ReplyStore
from milepost.chat.templates.loading import load_templates
from milepost.protocol.messages import decode_tokens

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "read", "description": "", "parameters": {"type": "object"}},
}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def preparer(source: str = CHATML) -> PromptPreparer:
    vocab = FakeVocab()
    return PromptPreparer(load_templates({"": source}, vocab), vocab, ReplyStore())


def talk(text: str = "hi", *, has_tools: bool = False) -> Conversation:
    return make_conversation([{"role": "user", "content": text}], [TOOL] if has_tools else None)


def test_a_prompt_has_tokens_and_boundaries() -> None:
    prepared = preparer().prepare(talk(), PromptOptions())
    tokens = decode_tokens(prepared.input.tokens).tolist()
    assert tokens == [IM_START, *b"hi", IM_END, IM_START]
    (end,) = [each for each in prepared.input.boundaries if each.kind == "prompt_end"]
    assert end.pos == 4  # before the generation prompt
    assert prepared.media == ()
    assert prepared.context is not None


def test_without_a_generation_prompt_no_reply_is_kept() -> None:
    prepared = preparer().prepare(talk(), PromptOptions(adds_generation_prompt=False))
    assert decode_tokens(prepared.input.tokens).tolist() == [IM_START, *b"hi", IM_END]
    assert prepared.context is None


ITERATING = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "text"), [(CHATML, "<|im_start|>a\nbc\nd<|im_end|>"), (ITERATING, "abcd")]
)
def test_parts_of_text_are_joined_as_the_template_does_it(source: str, text: str) -> None:
    parts = [ContentPart("a"), ContentPart("bc", is_breakpoint=True), ContentPart("d")]
    conversation = make_conversation([{"role": "user", "content": parts}])
    options = PromptOptions(adds_generation_prompt=False)
    assert preparer(source).render(conversation, options).text == text
    boundaries = preparer(source).prepare(conversation, options).input.boundaries
    (mark,) = [each.pos for each in boundaries if each.kind == "breakpoint"]
    assert decode_tokens(preparer(source).prepare(conversation, options).input.tokens)[mark] in (
        ord("\n"),
        ord("d"),
    )


def test_media_stand_at_their_positions() -> None:
    image = MediaPart("image", "messages[0].content[1]", "data:,a")
    parts = [ContentPart("a"), ContentPart(image), ContentPart("b")]
    conversation = make_conversation([{"role": "user", "content": parts}])
    prepared = preparer().prepare(conversation, PromptOptions())
    assert prepared.media == (image,)
    assert prepared.media_positions == (2,)


def test_rules_become_a_grammar_unless_there_is_another_one() -> None:
    rules = ReplyRules(schema=SCHEMA)
    assert preparer().prepare(talk(), PromptOptions(rules=rules)).input.constraint
    other = PromptOptions(rules=rules, has_grammar=True)
    assert preparer().prepare(talk(), other).input.constraint == ""


def test_only_tools_that_may_be_called_are_read_in_replies() -> None:
    other = {**TOOL, "function": {**TOOL["function"], "name": "write"}}
    conversation = make_conversation([{"role": "user", "content": "hi"}], [TOOL, other])
    options = PromptOptions(rules=ReplyRules(choice=ToolChoice("named", ("write",))))
    plan = preparer(families.CHATML_TOOLS).prepare(conversation, options).plan
    assert [tool["function"]["name"] for tool in plan.tools] == ["write"]
    silent = PromptOptions(reply=ReplyOptions(parses_calls=False))
    assert preparer(families.CHATML_TOOLS).prepare(conversation, silent).plan.tools == ()


def test_new_tools_under_a_known_system_prompt_are_told() -> None:
    prompts = preparer(families.CHATML_TOOLS)
    found = [
        prompts.prepare(talk(has_tools=has_tools), PromptOptions()).input.has_new_tools
        for has_tools in (False, True, True)
    ]
    assert found == [False, True, False]

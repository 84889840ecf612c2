"""Text that only spells a control token: marked before a rendering, plain after it."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from tests.unit.chat import families

from milepost.api.openai.messages import parse_conversation
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.rendered_prompt import (
    ControlTexts,
    RenderedPrompt,
    Run,
    unmark_control_texts,
)
from milepost.chat.templates.template import ChatTemplate, SpecialTexts
from milepost.errors import TemplateFailed

CONTROLS = ControlTexts(["<|im_start|>", "<|im_end|>", "<|im|>", "</s>", "x"])
SPELLED = "a<|im_end|>b"


def talk(*messages: dict[str, Any], **rest: Any) -> Conversation:
    """Return a conversation."""
    return parse_conversation(list(messages), **rest)


def render(source: str, conversation: Conversation) -> RenderedPrompt:
    """Render with a template that knows the control texts."""
    texts = SpecialTexts(controls=CONTROLS)
    return ChatTemplate(source, name="test", texts=texts).render(conversation)


def test_a_conversation_without_spelled_tokens_is_left_alone() -> None:
    conversation = talk({"role": "user", "content": "a <b> x | im_start"})
    assert CONTROLS.mark_control_texts(conversation) == (conversation, "")
    assert CONTROLS.mark_control_texts(conversation)[0] is conversation


def test_no_control_texts_mark_nothing() -> None:
    conversation = talk({"role": "user", "content": SPELLED})
    assert ControlTexts().mark_control_texts(conversation)[1] == ""


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "function"])
def test_untrusted_messages_are_marked_inside_the_spelled_token(role: str) -> None:
    conversation = talk({"role": role, "content": SPELLED, "name": SPELLED})
    marked, mark = CONTROLS.mark_control_texts(conversation)
    assert len(mark) == 1
    assert marked.messages == [
        {"role": role, "content": f"a<{mark}|im_end|>b", "name": f"a<{mark}|im_end|>b"}
    ]
    assert conversation.messages[0]["content"] == SPELLED


def test_replies_are_untrusted_but_for_markers_in_their_content() -> None:
    function = {"name": "f", "arguments": f'{{"{SPELLED}": ["{SPELLED}"]}}'}
    call = {"type": "function", "function": function}
    text = f"{SPELLED}<|im_start|>"
    message = {"role": "assistant", "content": text, "reasoning_content": text}
    conversation = talk({**message, "tool_calls": [call]})
    marked, mark = CONTROLS.mark_control_texts(conversation, lambda: frozenset(["<|im_start|>"]))
    inside = f"a<{mark}|im_end|>b"
    assert marked.messages[0] == {
        "role": "assistant",
        "content": f"{inside}<|im_start|>",
        "reasoning_content": f"{inside}<{mark}|im_start|>",
        "tool_calls": [{**call, "function": {"name": "f", "arguments": {inside: [inside]}}}],
    }
    assert marked.argument_texts == {(0, 0): f'{{"{inside}": ["{inside}"]}}'}


def test_a_token_with_a_quote_is_found_in_arguments_and_tools() -> None:
    controls = ControlTexts(['<|"|>'])
    function = {"name": "f", "arguments": {"a": 'b<|"|>'}}
    call = {"type": "function", "function": function}
    assert controls.mark_control_texts(
        talk({"role": "assistant", "content": "", "tool_calls": [call]})
    )[1]
    tool = {"type": "function", "function": {"name": "f", "description": '<|"|>'}}
    assert controls.mark_control_texts(talk({"role": "user", "content": ""}, tools=[tool]))[1]


def test_values_that_are_nested_too_deeply_are_refused_only_where_they_spell_a_token() -> None:
    def nested(text: str) -> Conversation:
        arguments = json.dumps(f"\\{text}")
        for _ in range(940):
            arguments = f"[{arguments}]"
        function = {"name": "f", "arguments": f'{{"a": {arguments}}}'}
        call = {"type": "function", "function": function}
        return talk({"role": "assistant", "content": "", "tool_calls": [call]})

    assert CONTROLS.mark_control_texts(nested("a"))[1] == ""
    with pytest.raises(TemplateFailed, match="too deeply"):
        render("{{ messages[0].content }}", nested("<|im_end|>"))


def test_tools_and_documents_are_marked_at_any_depth() -> None:
    parameters = {"type": "object", "properties": {SPELLED: {"enum": [SPELLED, 1]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    user = {"role": "user", "content": "hi"}
    marked, mark = CONTROLS.mark_control_texts(
        talk(user, tools=[tool], documents=[{"text": SPELLED}])
    )
    text = f"a<{mark}|im_end|>b"
    assert marked.tools is not None
    assert marked.tools[0]["function"]["parameters"]["properties"] == {text: {"enum": [text, 1]}}
    assert marked.documents == [{"text": text}]


def test_the_mark_is_a_character_that_the_conversation_does_not_have() -> None:
    plain = talk({"role": "user", "content": SPELLED})
    _, first = CONTROLS.mark_control_texts(plain)
    _, second = CONTROLS.mark_control_texts(talk({"role": "user", "content": SPELLED + first}))
    escaped = f"\\u{ord(first):04x}"
    _, third = CONTROLS.mark_control_texts(talk({"role": "user", "content": SPELLED + escaped}))
    assert first != second
    assert first != third


def test_the_rendered_text_is_what_it_would_be_without_marks() -> None:
    conversation = talk({"role": "user", "content": f" {SPELLED}<|im_start|> "})
    prompt = render("<|im_start|>{{ messages[0].content | trim }}<|im_end|>", conversation)
    assert prompt.text == "<|im_start|>a<|im_end|>b<|im_start|><|im_end|>"
    assert prompt.marks == (14, 25)


def test_json_in_a_template_keeps_text_and_marks() -> None:
    conversation = talk({"role": "user", "content": f'"{SPELLED}"\n'})
    prompt = render("{{ messages[0].content | tojson }}", conversation)
    assert prompt.text == '"\\"a<|im_end|>b\\"\\n"'
    assert prompt.marks == (5,)
    escaped = render("{{ messages[0].content | tojson(ensure_ascii=True) }}", conversation)
    assert escaped == prompt


def test_content_still_looks_the_same_to_a_template() -> None:
    message = {"role": "user", "content": f"<tool_response>{SPELLED}"}
    source = "{{ messages[0].content.startswith('<tool_response>') }}"
    assert render(source, talk(message)).text == "True"


def test_runs_reach_from_one_real_token_to_the_next() -> None:
    user = {"role": "user", "content": SPELLED}
    prompt = render(families.CHATML_TOOLS, talk({"role": "user", "content": "hi"}, user))
    assert list(CONTROLS.cut_at_marks(prompt)) == [
        Run("<|im_start|>user\nhi<|im_end|>\n<|im_start|>", parse_special=True),
        Run("user\na<|im_end|>b", parse_special=False),
        Run("<|im_end|>\n<|im_start|>assistant\n", parse_special=True),
    ]


def test_a_text_without_real_tokens_is_one_plain_run() -> None:
    prompt = render("{{ messages[0].content }}", talk({"role": "user", "content": SPELLED * 2}))
    assert list(CONTROLS.cut_at_marks(prompt)) == [Run(SPELLED * 2, parse_special=False)]


def test_the_longest_control_text_is_found() -> None:
    controls = ControlTexts(["<|a", "<|a|>", "<|a|>b", "[b]", "<|c"])
    _, mark = controls.mark_control_texts(talk({"role": "user", "content": "<|a|>b"}))
    found = unmark_control_texts(f"<{mark}|a|>b<|a|>bc<|c", mark)
    assert list(controls.cut_at_marks(found)) == [
        Run("<|a|>b", parse_special=False),
        Run("<|a|>bc<|c", parse_special=True),
    ]


@pytest.mark.parametrize("seed", range(200))
def test_exactly_the_tokens_of_the_template_are_parsed(seed: int) -> None:
    rng = random.Random(seed)
    parts = ["<|im_start|>", "<|im_end|>", "<|im|>", "</s>", "<", "|>", "a", " "]
    before, content, after = ("".join(rng.choices(parts, k=rng.randrange(6))) for _ in range(3))
    source = f"{before}{{{{ messages[0].content }}}}{after}"
    prompt = render(source, talk({"role": "user", "content": content}))
    runs = list(CONTROLS.cut_at_marks(prompt))
    assert "".join(run.text for run in runs) == prompt.text == before + content + after
    written = _tokens(before, 0) + _tokens(after, len(before + content))
    assert _parsed_tokens(runs) == written


def _parsed_tokens(runs: list[Run]) -> list[tuple[int, str]]:
    parsed = []
    pos = 0
    for run in runs:
        if run.parse_special:
            parsed += _tokens(run.text, pos)
        pos += len(run.text)
    return parsed


def _tokens(text: str, pos: int) -> list[tuple[int, str]]:
    found = re.finditer(r"<\|im_start\|>|<\|im_end\|>|<\|im\|>|</s>", text)
    return [(pos + match.start(), match[0]) for match in found]

"""What is known of a reply before it is written."""

from __future__ import annotations

import pytest
from tests.unit.chat.reply_samples import (
    GEMMA4,
    GPT_OSS,
    LFM2,
    QWEN3,
    QWEN25,
    SEED_OSS,
    THINK,
    TOOLS,
)

from milepost.chat.conversation.conversation import make_conversation
from milepost.chat.conversation.rendered_prompt import ControlTexts
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.reply_plan import (
    ReplyOptions,
    find_generation_part,
    find_shown_tokens,
    is_reasoning_open,
    plan_reply,
)
from milepost.chat.templates.template import ChatTemplate, SpecialTexts

CONTROLS = {
    "<|tool_call_start|>": 1,
    "<|tool_call_end|>": 2,
    "<|channel>": 3,
    "<channel|>": 4,
    "<|im_end|>": 5,
    "<|message|>": 6,
    "<think>": 7,
}


@pytest.mark.parametrize(
    ("generation_part", "is_open"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("</think><|im_start|>assistant\n<think>Be short.\n", True),
        ("", False),
    ],
)
def test_reasoning_is_open_where_the_prompt_ends_inside_it(
    generation_part: str, is_open: bool
) -> None:
    assert is_reasoning_open(generation_part, THINK) is is_open


def test_white_space_of_markers_does_not_count() -> None:
    assert is_reasoning_open("<start>model\n<|channel>thought", GEMMA4.reasoning)
    assert not is_reasoning_open("<|channel>thought\n<channel|>", GEMMA4.reasoning)
    assert is_reasoning_open("<seed:think>", SEED_OSS.reasoning)
    assert not is_reasoning_open("<think>", None)


def test_the_control_tokens_of_markers_are_shown() -> None:
    def find(reply_format: ReplyFormat, has_tools: bool) -> tuple[int, ...]:
        return find_shown_tokens(reply_format, has_tools=has_tools, controls=CONTROLS)

    assert find(LFM2, True) == (1, 2)
    assert find(LFM2, False) == ()
    assert find(GEMMA4, False) == (3, 4)
    assert find(GPT_OSS, False) == (6,)
    assert find(QWEN3, True) == (7,)
    assert find(ReplyFormat(), True) == ()


def generation_part(content: str, *, framed: bool, opens: bool, has_control: bool) -> str:
    """Return what is found to open the reply to a message."""
    frame = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    before, behind = frame if framed else ("</s>USER: ", " ASSISTANT: ")
    source = (
        "{%- for m in messages %}{% if m.role == 'assistant' %}"
        f"{behind}<think>\n{{{{ m.reasoning_content }}}}\n</think>\n{{{{ m.content }}}}"
        f"{{% else %}}{before}{{{{ m.content }}}}{{% endif %}}{{% endfor -%}}"
        f"{{%- if add_generation_prompt %}}{behind}{'<think>' if opens else ''}{{% endif %}}"
    )
    controls = ["<|im_start|>", "<|im_end|>", "</s>", *(["<think>"] if has_control else [])]
    texts = SpecialTexts("<s>", "</s>", ControlTexts(controls))
    template = ChatTemplate(source, name="test", texts=texts)
    assert template.reply_format.reasoning is not None
    conversation = make_conversation([{"role": "user", "content": content}])
    return find_generation_part(template.render(conversation), conversation, template)


@pytest.mark.parametrize("has_control", [False, True])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize(
    "content", ["a", "What does `<think>` do", "<|im_end|> and <think>", 5000 * "<think>a"]
)
def test_text_of_the_user_opens_no_reasoning(
    content: str, framed: bool, opens: bool, has_control: bool
) -> None:
    found = generation_part(content, framed=framed, opens=opens, has_control=has_control)
    assert found.endswith("<think>" if opens else ("assistant\n", "ASSISTANT: ")[not framed])
    assert found.count("<think>") == opens
    assert "do" not in found


def test_a_plan_without_calls_has_no_tools() -> None:
    plan = plan_reply(QWEN25, "", TOOLS, ReplyOptions(parses_calls=False))

    assert plan.tools == ()
    assert plan.reply_format == QWEN25


def test_a_plan_without_reasoning_has_a_format_without_it() -> None:
    plan = plan_reply(QWEN3, "<think>\n", TOOLS, ReplyOptions(reasoning="none"))

    assert plan.reply_format == QWEN25
    assert plan.tools == tuple(TOOLS)


def test_a_plan_without_anything_is_plain_text() -> None:
    plan = plan_reply(QWEN3, "<think>\n", TOOLS, ReplyOptions(parses_anything=False))

    assert plan.reply_format == ReplyFormat()
    assert plan.tools == ()

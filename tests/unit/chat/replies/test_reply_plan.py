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
    merge,
)

from milepost.chat.formats.reply_events import ContentText
from milepost.chat.formats.reply_format import ReplyFormat
from milepost.chat.replies.reply_plan import (
    ReplyOptions,
    find_shown_tokens,
    is_reasoning_open,
    plan_reply,
)

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
    ("generation_prompt", "is_open"),
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
    generation_prompt: str, is_open: bool
) -> None:
    assert is_reasoning_open(generation_prompt, THINK) is is_open


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


def test_a_plan_without_calls_has_no_tools() -> None:
    plan = plan_reply(QWEN25, "", TOOLS, ReplyOptions(parses_calls=False))

    assert plan.tools == ()
    assert plan.reply_format == QWEN25


def test_a_plan_without_reasoning_has_a_format_without_it() -> None:
    plan = plan_reply(QWEN3, "<think>\n", TOOLS, ReplyOptions(reasoning="none"))

    assert plan.reply_format == QWEN25
    assert plan.tools == tuple(TOOLS)
    assert plan.lead == "<think>\n"


def test_reasoning_that_stays_in_the_content_has_the_start_that_the_prompt_holds() -> None:
    plan = plan_reply(QWEN3, "<|im_start|>\n<think>\n", [], ReplyOptions(reasoning="none"))
    parser = plan.make_parser()

    events = [*parser.feed("Hm.</think>Yes."), *parser.finish(is_truncated=False)]

    assert merge(events) == [ContentText("<think>\nHm.</think>Yes.")]


def test_a_plan_without_anything_is_plain_text() -> None:
    plan = plan_reply(QWEN3, "<think>\n", TOOLS, ReplyOptions(parses_anything=False))

    assert plan.reply_format == ReplyFormat()
    assert plan.tools == ()

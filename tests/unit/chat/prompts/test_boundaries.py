"""Boundaries are where prefixes of a conversation really stop being prefixes of its prompt."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.vocab import FakeVocab
from tests.unit.chat.families import CHATML_TOOLS, INST_ALTERNATING, NO_SYSTEM, TYPED_PARTS

from milepost.api.openai.messages import parse_conversation
from milepost.chat.conversation.conversation import Conversation
from milepost.chat.conversation.rendered_prompt import RenderedPrompt, common_prefix
from milepost.chat.prompts.boundaries import BoundaryFinder, PromptBoundaries, TextBoundary
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet

# In the manner of Qwen3.5: reasoning is opened by the generation prompt and dropped from history.
OPENED_THINKING = CHATML_TOOLS.replace(
    "<|im_start|>assistant\n{% if enable", "<|im_start|>assistant\n<think>\n{% if enable"
)
# In the manner of older Mistral templates: the tools stand before the last user message.
MOVING_TOOLS = """\
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- if loop.index0 == ns.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif -%}
    [{{ m.role }}] {{ m.content }} [/{{ m.role }}]
{%- endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}"""
# Changes what it is given, so that nothing rendered with marks can be found again.
REVERSING = """\
{%- for m in messages %}<{{ m.role }}>{{ m.content | reverse }}{% endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}"""

TOOLS = [{"type": "function", "function": {"name": "read", "description": "Reads. " * 40}}]
SYSTEM = {"role": "system", "content": "Be brief. " * 30}


def call(number: int, content: str = "") -> dict[str, Any]:
    function = {"name": "read", "arguments": f'{{"path": "file{number}"}}'}
    calls = [{"type": "function", "id": f"call{number:05}", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(number: int, content: str = "text of a file\n") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call{number:05}"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str, reasoning: str = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {**message, "reasoning_content": reasoning} if reasoning else message


SESSION = [
    SYSTEM,
    user("first question"),
    call(1),
    result(1),
    call(2, "and another"),
    result(2, " indented"),
    reply("an answer"),
    user("second question"),
    call(3),
    result(3),
]


class Turns:
    """Requests of one server, with a count of the messages that were rendered."""

    def __init__(self, source: str) -> None:
        self.num_messages = 0
        self.template = CountingTemplate(source, self)
        self.finder = BoundaryFinder(TemplateSet(self.template))

    def find(self, messages: list[dict[str, Any]], **kwargs: Any) -> tuple[str, PromptBoundaries]:
        """Return the prompt and its boundaries."""
        conversation = parse_conversation(messages, TOOLS)
        rendered = self.template.render(conversation, kwargs=kwargs)
        self.num_messages = 0
        return rendered.text, self.finder.find_boundaries(conversation, rendered, kwargs=kwargs)

    def expected_end(self, messages: list[dict[str, Any]], num_messages: int) -> int:
        """Return where the first messages end, by definition."""
        whole = self.template.render(parse_conversation(messages, TOOLS))
        part = parse_conversation(messages[:num_messages], TOOLS)
        without = self.template.render(part, add_generation_prompt=False)
        return common_prefix(without.text, whole.text)


class CountingTemplate(ChatTemplate):
    """Counts the messages that it renders."""

    def __init__(self, source: str, turns: Turns) -> None:
        super().__init__(source, name="test", texts=SpecialTexts.of(FakeVocab()))
        self._turns = turns

    def render(self, conversation: Conversation, **options: Any) -> RenderedPrompt:
        """Render."""
        self._turns.num_messages += len(conversation.messages)
        return super().render(conversation, **options)


def ends_of(found: PromptBoundaries) -> dict[int, int]:
    """Return message index -> end."""
    kinds = ("message_end", "prompt_end")
    return {b.message_index: b.offset for b in found.boundaries if b.kind in kinds}


def only(found: PromptBoundaries, kind: str) -> TextBoundary:
    """Return the one boundary of a kind."""
    (boundary,) = (b for b in found.boundaries if b.kind == kind)
    return boundary


@pytest.mark.parametrize("source", [CHATML_TOOLS, OPENED_THINKING], ids=["chatml", "opened"])
def test_messages_end_where_their_prefix_does(source: str) -> None:
    turns = Turns(source)
    _, found = turns.find(SESSION)
    expected = {i: turns.expected_end(SESSION, i + 1) for i in range(len(SESSION))}
    assert ends_of(found) == expected


@pytest.mark.parametrize("source", [CHATML_TOOLS, OPENED_THINKING], ids=["chatml", "opened"])
def test_every_turn_finds_what_a_new_finder_finds(source: str) -> None:
    turns = Turns(source)
    for num_messages in range(2, len(SESSION) + 1):
        _, found = turns.find(SESSION[:num_messages])
        assert found == Turns(source).find(SESSION[:num_messages])[1]


def test_boundaries_are_in_order_and_carry_roles() -> None:
    _, found = Turns(CHATML_TOOLS).find(SESSION)
    offsets = [boundary.offset for boundary in found.boundaries]
    assert offsets == sorted(offsets)
    for boundary in found.boundaries:
        assert boundary.role == SESSION[boundary.message_index]["role"]


def test_a_turn_renders_its_new_messages_only() -> None:
    turns = Turns(CHATML_TOOLS)
    history = [SYSTEM, user("go")]
    for number in range(100):
        history += [call(number), result(number)]
        turns.find(history)
    assert turns.num_messages <= 6
    turns.find([*history, reply("done"), user("again")])
    assert turns.num_messages <= 30  # pairs of roles that are new are learned in passing


def test_branches_and_edits_are_found_anew() -> None:
    turns = Turns(CHATML_TOOLS)
    turns.find(SESSION)
    edited = [*SESSION[:3], result(1, "blanked"), *SESSION[4:]]
    branch = [*SESSION[:6], user("no, something else")]
    for messages in (edited, branch, SESSION):
        assert turns.find(messages)[1] == Turns(CHATML_TOOLS).find(messages)[1]


def test_two_branches_are_both_remembered() -> None:
    turns = Turns(CHATML_TOOLS)
    branch = [*SESSION[:6], user("no, something else")]
    turns.find(SESSION)
    turns.find(branch)
    turns.find(SESSION)
    assert turns.num_messages == 0


def test_the_system_end_is_shared_by_all_conversations() -> None:
    turns = Turns(CHATML_TOOLS)
    one, found = turns.find(SESSION)
    other, _ = turns.find([SYSTEM, user("\nquite another")])
    end = only(found, "system_end").offset
    assert one[:end] == other[:end]
    assert one[:end].endswith("<|im_end|>\n<|im_start|>")  # "user\n" may be merged with more


def test_short_or_missing_system_messages_have_no_end() -> None:
    template = ChatTemplate(CHATML_TOOLS, name="test")
    finder = BoundaryFinder(TemplateSet(template))
    for messages in ([user("hi")], [{"role": "system", "content": "Brief."}, user("hi")]):
        conversation = parse_conversation(messages)
        found = finder.find_boundaries(conversation, template.render(conversation))
        assert "system_end" not in {boundary.kind for boundary in found.boundaries}


def test_the_prompt_end_is_before_the_generation_prompt() -> None:
    prompt, found = Turns(OPENED_THINKING).find(SESSION)
    assert prompt[only(found, "prompt_end").offset :].strip() == "<|im_start|>assistant\n<think>"


def test_there_is_none_without_generation_prompt() -> None:
    template = ChatTemplate(CHATML_TOOLS, name="test")
    conversation = parse_conversation(SESSION)
    rendered = template.render(conversation, add_generation_prompt=False)
    found = BoundaryFinder(TemplateSet(template)).find_boundaries(
        conversation, rendered, add_generation_prompt=False
    )
    assert "prompt_end" not in {boundary.kind for boundary in found.boundaries}
    assert not found.keeps_prompt_end


def test_tool_results_are_no_user_messages() -> None:
    prompt, found = Turns(CHATML_TOOLS).find(SESSION)
    last_user = only(found, "last_user")
    assert last_user.message_index == 6
    assert prompt[last_user.offset :].lstrip().startswith("<|im_start|>user\nsecond question")


def test_where_reasoning_goes_there_is_one_after_the_last_user_message_too() -> None:
    reasoned = [*SESSION[:-2], reply("thinking aloud", "because"), user("why?"), reply("so", "as")]
    turns = Turns(CHATML_TOOLS)
    prompt, found = turns.find([*reasoned, call(4), result(4)])
    places = [b.message_index for b in found.boundaries if b.kind == "last_user"]
    assert places == [8, 9]
    next_prompt, _ = turns.find([*reasoned, call(4), result(4), user("and?")])
    last = [b.offset for b in found.boundaries if b.kind == "last_user"][-1]
    diverging = common_prefix(prompt, next_prompt)
    assert 0 <= diverging - last <= len("\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "kwargs", "keeps"),
    [
        (CHATML_TOOLS, {}, False),
        (CHATML_TOOLS, {"enable_thinking": False}, True),
        (OPENED_THINKING, {}, True),
        (NO_SYSTEM, {}, False),
    ],
)
def test_the_prompt_end_is_kept_where_history_differs(
    source: str, kwargs: dict[str, Any], keeps: bool
) -> None:
    _, found = Turns(source).find([user("hi")], **kwargs)
    assert found.keeps_prompt_end is keeps


def test_tools_that_move_leave_the_text_before_them_shared() -> None:
    turns = Turns(MOVING_TOOLS)
    messages = [SYSTEM, user("one"), reply("1"), user("two")]
    prompt, found = turns.find(messages)
    next_prompt, _ = turns.find([*messages, reply("2"), user("three")])
    last_user = only(found, "last_user").offset
    assert prompt[last_user:].startswith("[TOOLS]")
    assert prompt[:last_user] == next_prompt[:last_user]
    assert only(found, "system_end").offset <= last_user


def test_templates_with_other_demands_have_ends_too() -> None:
    chat = [user("one"), reply("1"), user("two"), reply("2"), user("three")]
    for source in (INST_ALTERNATING, TYPED_PARTS, NO_SYSTEM):
        turns = Turns(source)
        _, found = turns.find(chat)
        ends = ends_of(found)
        assert [ends[i] for i in range(4)] == [turns.expected_end(chat, i + 1) for i in range(4)]


def test_what_cannot_be_found_is_left_out() -> None:
    _, found = Turns(REVERSING).find([user("one"), reply("1"), user("two")])
    assert {b.kind for b in found.boundaries} <= {"message_end", "prompt_end", "last_user"}


def test_texts_that_look_like_marks_are_left_alone() -> None:
    _, found = Turns(CHATML_TOOLS).find([SYSTEM, user("\uf8d0\uf8d1"), reply("a"), user("b")])
    assert only(found, "system_end").offset > 0


MARK = {"cache_control": {"type": "ephemeral"}}
EXPLICIT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def parts(*texts: str, marked: int) -> list[dict[str, Any]]:
    """Return text parts, one of them marked."""
    mark = {marked: EXPLICIT}
    return [{"type": "text", "text": text, **mark.get(i, {})} for i, text in enumerate(texts)]


def marks_of(found: PromptBoundaries) -> list[tuple[int, int]]:
    """Return (offset, message index) of the client's boundaries."""
    return [(b.offset, b.message_index) for b in found.boundaries if b.kind == "breakpoint"]


@pytest.mark.parametrize("mark", [MARK, EXPLICIT], ids=["message", "explicit"])
def test_a_marked_message_is_a_breakpoint_after_it(mark: dict[str, Any]) -> None:
    plain, _ = Turns(CHATML_TOOLS).find(SESSION)
    turns = Turns(CHATML_TOOLS)
    messages = [*SESSION[:3], {**SESSION[3], **mark}, *SESSION[4:]]

    prompt, found = turns.find(messages)

    assert prompt == plain
    assert marks_of(found) == [(turns.expected_end(SESSION, 4), 3)]


def test_a_marked_part_is_a_breakpoint_inside_its_message() -> None:
    question = {"role": "user", "content": parts(" the files", "now: noon", "go\n", marked=1)}
    prompt, found = Turns(CHATML_TOOLS).find([SYSTEM, user("one"), reply("1"), question, call(1)])

    ((offset, index),) = marks_of(found)

    assert index == 3
    assert prompt[:offset].endswith("user\n the files\nnow: noon")


def test_a_part_that_cannot_be_found_stands_for_its_message() -> None:
    turns = Turns(CHATML_TOOLS)
    blank = {"role": "user", "content": parts("one", "  ", marked=0)}
    _, found = turns.find([SYSTEM, blank, reply("1"), user("two"), call(1)])
    assert marks_of(found) == [(ends_of(found)[1], 1)]
    turns = Turns(CHATML_TOOLS.replace("message.content }}", "message.content | upper }}"))
    shouted = {"role": "user", "content": parts("one", "more", marked=0)}
    _, found = turns.find([SYSTEM, shouted, reply("1"), user("two"), call(1)])
    assert marks_of(found) == [(ends_of(found)[1], 1)]


def test_marks_where_another_boundary_is_exact_are_no_second_one() -> None:
    messages = [
        {"role": "system", "content": parts("Be ", "brief. " * 60, marked=1)},
        user("one"),
        {**reply("1"), **MARK},  # before the last user message
        {"role": "user", "content": parts("two", marked=0)},  # the end of the prompt
    ]
    _, found = Turns(CHATML_TOOLS).find(messages)
    assert marks_of(found) == []
    assert {"system_end", "last_user", "prompt_end"} <= {b.kind for b in found.boundaries}


def test_marks_that_move_do_not_make_a_history_another() -> None:
    turns, plain = Turns(CHATML_TOOLS), Turns(CHATML_TOOLS)
    turns.find([*SESSION[:-1], {**SESSION[-1], **MARK}])
    plain.find(SESSION)

    turns.find([*SESSION, reply("done"), {**user("again"), **MARK}])
    plain.find([*SESSION, reply("done"), user("again")])

    assert turns.num_messages == plain.num_messages


def test_only_the_latest_marks_count() -> None:
    messages = [
        SYSTEM,
        *({**message, **MARK} for _ in range(60) for message in (user("a"), reply("b"))),
    ]
    conversation = parse_conversation([*messages, user("c")])
    assert [mark.message_index for mark in conversation.breakpoints] == list(range(41, 121))


@pytest.mark.parametrize("none", [None, False])
def test_a_mark_that_is_null_is_none(none: object) -> None:
    conversation = parse_conversation([{**user("hi"), "cache_control": none}])
    assert conversation.breakpoints == ()
    assert conversation.messages == [user("hi")]


REMINDER = "\n\n<reminder>\nStill in build mode; {} open.\n</reminder>"


def test_what_moves_along_with_the_last_message_is_left_out_of_a_prefix() -> None:
    turns = Turns(OPENED_THINKING)
    history, prompts = [SYSTEM, user("one"), call(1)], []
    for number in (1, 2, 3):
        output = f"output {number}" * 9
        reminded = [*history, result(number, output + REMINDER.format(number))]
        prompts.append(turns.find(reminded))
        history += [result(number, output), call(number + 1)]

    for (prompt, found), (later, _) in zip(prompts[1:], prompts[2:], strict=False):
        # Behind the result the template writes a line break, as there is one before the reminder.
        assert only(found, "last_user").offset == common_prefix(prompt, later) - 1
    assert "last_user" not in {b.kind for b in prompts[0][1].boundaries}  # it has not moved yet


def test_where_a_user_message_will_change_its_begin_need_not_be_met() -> None:
    turns = Turns(CHATML_TOOLS)
    turns.find([SYSTEM, user("one" + REMINDER.format(1))])
    history = [SYSTEM, user("one"), reply("1")]
    prompt, found = turns.find([*history, user("two" + REMINDER.format(2))])
    later, _ = turns.find([*history, user("two"), reply("2"), user("three" + REMINDER.format(3))])
    assert only(found, "last_user").offset == common_prefix(prompt, later)


@pytest.mark.parametrize(
    ("before", "after", "last"),
    [
        ("a file" + REMINDER, "", "a file" + REMINDER),  # blanked, and read again
        ("a file" + REMINDER, "a file", "nothing of it"),
        ("a file" + REMINDER, "another", "b" + REMINDER),
        ("see a", "see", "look a"),  # too short to be recognised
        ("a file" + REMINDER, "a file", REMINDER),  # the whole message moves
    ],
)
def test_other_changes_are_no_moving_text(before: str, after: str, last: str) -> None:
    turns = Turns(CHATML_TOOLS)
    turns.find([SYSTEM, user("go"), call(1), result(1, before)])
    _, found = turns.find([SYSTEM, user("go"), call(1), result(1, after), call(2), result(2, last)])
    assert "last_user" not in {b.kind for b in found.boundaries}


def test_what_stands_before_a_date_in_the_system_prompt_is_met() -> None:
    rules = "Be brief. " * 30 + "\n"
    system = {"role": "system", "content": f"{rules}Date: 2026-11-30\nMore rules.\n"}
    text, found = Turns(CHATML_TOOLS).find([system, user("Hello")])
    (date,) = [boundary for boundary in found.boundaries if boundary.kind == "date"]
    assert text[date.offset :].startswith("Date: 2026-11-30")
    assert date.message_index == 0


def test_a_date_at_the_begin_of_a_prompt_is_no_boundary() -> None:
    system = {"role": "system", "content": "Date: 2026-11-30\n" + "Be brief. " * 30}
    template = ChatTemplate(CHATML_TOOLS, name="test")
    conversation = parse_conversation([system, user("Hello")])
    found = BoundaryFinder(TemplateSet(template)).find_boundaries(
        conversation, template.render(conversation)
    )
    assert "system_end" in {boundary.kind for boundary in found.boundaries}
    assert "date" not in {boundary.kind for boundary in found.boundaries}

"""What a prefill is put down to, one history and one prompt at a time."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from tests.requests import make_generate

from milepost.cache.match import Missing
from milepost.cache.tree import shared_length
from milepost.engine.cache_report import (
    PrefixFacts,
    choose_reason,
    count_twice,
    find_message,
)
from milepost.kinds import BoundaryKind
from milepost.protocol.cache import CacheReason
from milepost.protocol.messages import Boundary, Generate

HEAD, END = 1, 2  # <|im_start|>, <|im_end|>
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}

Message = tuple[str, list[int]]
NO_CAUSE: Missing = ""


def words(seed: int, count: int = 40) -> list[int]:
    """Return some content."""
    return [10 + token for token in random.Random(seed).choices(range(500), k=count)]


def render(messages: list[Message]) -> tuple[np.ndarray, tuple[Boundary, ...]]:
    """Return the prompt of a conversation, and the ends of its messages."""
    tokens: list[int] = []
    boundaries = []
    for index, (role, content) in enumerate(messages):
        tokens += [HEAD, ROLES[role], *content, END]
        kind: BoundaryKind = "message_end" if index < len(messages) - 1 else "prompt_end"
        boundaries.append(Boundary(len(tokens), kind, index, role))
        if role == "system":  # all conversations share the head of the next message
            boundaries.append(Boundary(len(tokens) + 2, "system_end", index, role))
    tokens += [HEAD, ROLES["assistant"]]
    boundaries.sort(key=lambda boundary: boundary.pos)
    return np.array(tokens, np.int32), tuple(boundaries)


SYSTEM: Message = ("system", words(0, 100))
HISTORY: list[Message] = [
    SYSTEM,
    ("user", words(1)),
    ("assistant", [*words(2, 60), *words(3)]),
    ("tool", words(4, 80)),
    ("assistant", [*words(5, 60), *words(6)]),
    ("tool", words(7, 80)),
    ("assistant", words(8)),
    ("user", words(9)),
]


def reason_after(history: list[Message], messages: list[Message], **fields: bool) -> CacheReason:
    """Return the reason for a prompt that is answered after another conversation."""
    known, _ = render(history)
    prompt, boundaries = render(messages)
    shared = shared_length(known, prompt)
    facts = PrefixFacts(
        is_reuse_wanted=True,
        num_known=shared,
        missing="",
        replaced=(known[shared:],) if shared < min(len(known), len(prompt)) else (),
        num_reused=min(shared, len(prompt) - 1),
    )
    return choose_reason(generate(boundaries, **fields), prompt, facts)


def generate(boundaries: tuple[Boundary, ...], *, has_new_tools: bool = False) -> Generate:
    return make_generate(1, boundaries=boundaries, has_new_tools=has_new_tools)


def changed(index: int, content: list[int]) -> list[Message]:
    """Return the history with another content in one message."""
    messages = list(HISTORY)
    messages[index] = (messages[index][0], content)
    return messages


def test_the_first_request() -> None:
    prompt, boundaries = render(HISTORY)
    facts = PrefixFacts(is_reuse_wanted=True, num_known=0, missing="", replaced=())
    assert choose_reason(generate(boundaries), prompt, facts) == "first_request"


def test_what_any_two_conversations_share_is_not_known() -> None:
    assert reason_after([("user", words(50))], [("user", words(51))]) == "first_request"


def test_a_conversation_that_goes_on() -> None:
    longer = [*HISTORY, ("assistant", words(60)), ("user", words(61))]
    assert reason_after(HISTORY, longer) == "extended"
    assert reason_after(HISTORY, HISTORY) == "extended"


def test_a_changed_system_prompt() -> None:
    messages = changed(0, [*words(0, 90), *words(70, 10)])
    assert reason_after(HISTORY, messages) == "changed_system"
    assert reason_after(HISTORY, messages, has_new_tools=True) == "changed_tools"


def test_new_tools_that_change_nothing_in_the_prompt() -> None:
    longer = [*HISTORY, ("assistant", words(60)), ("user", words(61))]
    assert reason_after(HISTORY, longer, has_new_tools=True) == "extended"


@pytest.mark.parametrize("index", [1, 3, 4])
def test_a_message_in_the_middle_is_another_one(index: int) -> None:
    assert reason_after(HISTORY, changed(index, words(80, 120))) == "edited_message"


def test_reasoning_that_the_template_drops_from_history() -> None:
    assert reason_after(HISTORY, changed(4, words(6))) == "stripped_reasoning"


def test_reasoning_of_the_last_answer_that_is_dropped_when_the_user_speaks() -> None:
    history = [SYSTEM, ("user", words(1)), ("assistant", [*words(2, 60), *words(3, 5)])]
    messages = [*history[:2], ("assistant", words(3, 5)), ("user", words(9))]
    assert reason_after(history, messages) == "stripped_reasoning"


def test_a_word_that_follows_the_system_prompt_begins_no_message() -> None:
    word = words(1)[0]
    history = changed(4, [*[word] * 20, *words(6)])
    assert reason_after(history, changed(4, words(6))) == "stripped_reasoning"


def test_a_short_answer_that_was_never_generated_is_no_stripped_one() -> None:
    assert reason_after(HISTORY, changed(4, words(81, 20))) == "edited_message"


def test_a_reminder_that_moves_on() -> None:
    history = [SYSTEM, ("user", [*words(1), *words(2)])]
    messages = [SYSTEM, ("user", words(1)), ("assistant", words(3)), ("user", words(2))]
    assert reason_after(history, messages) == "edited_message"


def test_an_old_result_is_shortened() -> None:
    assert reason_after(HISTORY, changed(3, words(82, 4))) == "pruned_history"


def test_an_old_message_is_removed() -> None:
    assert reason_after(HISTORY, [*HISTORY[:2], *HISTORY[4:]]) == "pruned_history"


def test_many_messages_become_a_summary() -> None:
    history = [*HISTORY, ("assistant", words(60)), ("user", words(61))]
    messages = [SYSTEM, ("user", words(83, 20)), *history[6:]]
    assert reason_after(history, messages) == "compacted"


def test_another_conversation_with_the_same_system_prompt() -> None:
    assert reason_after(HISTORY, [SYSTEM, ("user", words(84))]) == "branch"


def test_another_last_message() -> None:
    assert reason_after(HISTORY, changed(7, words(85))) == "branch"


def test_a_prompt_without_messages() -> None:
    known, _ = render(HISTORY)
    facts = PrefixFacts(
        is_reuse_wanted=True, num_known=50, missing="", replaced=(known[50:],), num_reused=50
    )
    assert choose_reason(generate(()), known[:300], facts) == "branch"


PROMPT, BOUNDARIES = render(HISTORY)
LOST = PrefixFacts(
    is_reuse_wanted=True, num_known=len(PROMPT), missing="evicted", replaced=(), num_reused=100
)


@pytest.mark.parametrize("missing", ["evicted", "no_checkpoint_at", "not_saved", "window_lost"])
def test_what_is_known_but_not_there(missing: Missing) -> None:
    facts = dataclasses.replace(LOST, missing=missing)
    assert choose_reason(generate(BOUNDARIES), PROMPT, facts) == missing


def test_what_is_there_but_was_not_used() -> None:
    def reason(**changes: object) -> CacheReason:
        facts = dataclasses.replace(LOST, **changes)  # type: ignore[arg-type]
        return choose_reason(generate(BOUNDARIES), PROMPT, facts)

    assert reason(num_refused=1) == "restore_refused_slower"
    assert reason(missing=NO_CAUSE) == "restore_refused_slower"
    assert reason(num_failed=1, num_refused=1) == "restore_failed"
    assert reason(is_reuse_wanted=False) == "cache_off"


@pytest.mark.parametrize(("num_reused", "reason"), [(250, "changed_system"), (40, "evicted")])
def test_the_larger_of_a_change_and_a_loss_is_named(num_reused: int, reason: str) -> None:
    prompt, boundaries = render([("system", words(0, 500)), ("user", words(1, 10))])
    facts = PrefixFacts(
        is_reuse_wanted=True,
        num_known=330,
        missing="evicted",
        replaced=(np.array(words(2), np.int32),),
        num_reused=num_reused,
    )
    assert choose_reason(generate(boundaries), prompt, facts) == reason


def test_a_few_tokens_that_are_lost_are_no_reason() -> None:
    facts = dataclasses.replace(LOST, num_reused=len(PROMPT) - 40)
    assert choose_reason(generate(BOUNDARIES), PROMPT, facts) == "extended"


def test_the_last_token_is_never_computed_twice() -> None:
    def twice(num_known: int, num_reused: int) -> int:
        facts = dataclasses.replace(LOST, num_known=num_known, num_reused=num_reused)
        return count_twice(facts, 100)

    assert (twice(100, 99), twice(100, 0), twice(40, 10), twice(10, 40)) == (0, 99, 30, 0)


def test_a_position_lies_in_the_message_that_ends_behind_it() -> None:
    boundaries = (
        Boundary(10, "message_end", 0, "system"),
        Boundary(10, "last_user", 0, "system"),
        Boundary(20, "prompt_end", 1, "user"),
    )
    found = [find_message(boundaries, pos) for pos in (0, 9, 10, 19, 20)]
    assert [end.message_index if end else None for end in found] == [0, 0, 1, 1, None]


def test_tools_are_a_system_prompt_of_their_own() -> None:
    boundaries = (
        Boundary(10, "system_end", -1, "system"),
        Boundary(20, "prompt_end", 0, "user"),
    )
    found = [find_message(boundaries, pos) for pos in (9, 10)]
    assert [end.role if end else None for end in found] == ["system", "user"]

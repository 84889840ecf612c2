"""Which replies are kept, which are found, and which go."""

from __future__ import annotations

import random
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.fakes.vocab import IM_END, THINK, FakeVocab

from milepost.chat.formats.reply_events import CallStart, ReasoningText, ReplyEvent
from milepost.chat.reply_memory.reply_meaning import ReplyMeaning
from milepost.chat.reply_memory.reply_store import (
    KeptReply,
    ReplyContext,
    ReplyKeeper,
    ReplyStore,
    SampledReply,
    WantedReply,
)

CONTEXT = ReplyContext("<|im_start|>assistant\n", b"history")


def reply(text: str, history_key: bytes = b"p", **fields: Any) -> KeptReply:
    meaning = ReplyMeaning(text, fields.pop("reasoning", ""))
    return KeptReply(
        tokens=fields.pop("tokens", array("i", [*text.encode()])),
        generation_prompt=fields.pop("generation_prompt", "<a>"),
        meaning=meaning.digest,
        bare=meaning.bare_digest,
        history_key=history_key,
        reasoning=meaning.reasoning,
        ids=fields.pop("ids", ()),
    )


def find(store: ReplyStore, text: str, history_key: bytes = b"") -> KeptReply | None:
    return store.find_reply(WantedReply(ReplyMeaning(text).digest, history_key), "x<a>", 1)


def kept(sampled: SampledReply, *shown: int, context: ReplyContext = CONTEXT) -> list[KeptReply]:
    """Return what is kept of a sampled reply."""
    store = ReplyStore()
    ReplyKeeper(store, FakeVocab()).keep_reply(context, sampled, lambda token: token in shown)
    return list(store.replies())


def test_what_a_reply_says_finds_it_after_its_generation_prompt_only() -> None:
    store = ReplyStore()
    store.add_reply(reply("a"))
    assert find(store, " a ") == reply("a")
    assert find(store, "b") is None
    assert store.find_reply(WantedReply(ReplyMeaning("a").digest, b"p"), "x<b>", 1) is None


def test_the_place_decides_and_then_the_age() -> None:
    store = ReplyStore()
    for number, key in enumerate((b"1", b"2", b"2", b"3")):
        store.add_reply(reply("a", key, tokens=array("i", [number])))
    found = [find(store, "a", key) for key in (b"1", b"2", b"3", b"4")]
    assert [each.tokens[0] if each else None for each in found] == [0, 2, 3, 0]


def test_reasoning_is_found_if_there_is_no_doubt() -> None:
    store, bare = ReplyStore(), ReplyMeaning("a").bare_digest
    store.add_reply(reply("a", b"1", reasoning="why"))
    store.add_reply(reply("a", b"2", reasoning="one"))
    store.add_reply(reply("a", b"2", reasoning="other"))
    assert [store.find_reasoning(bare, key) for key in (b"1", b"2", b"3")] == ["why", "", ""]


def test_the_least_recently_used_goes_first() -> None:
    size = reply("a").num_bytes
    store = ReplyStore(max_bytes=2 * size)
    store.add_reply(reply("a"))
    store.add_reply(reply("b"))
    find(store, "a")
    store.add_reply(reply("c"))
    assert [find(store, text) is not None for text in "abc"] == [True, False, True]
    assert store.num_bytes == 2 * size


def test_the_same_reply_is_kept_once() -> None:
    store = ReplyStore()
    for _ in range(3):
        store.add_reply(reply("a"))
    assert len(store) == 1


def test_one_that_is_too_large_is_not_kept() -> None:
    store = ReplyStore(max_bytes=1000)
    store.add_reply(reply("a" * 1000))
    assert (len(store), store.num_bytes) == (0, 0)


def test_two_threads_may_use_it() -> None:
    store = ReplyStore(max_bytes=20 * reply("a").num_bytes)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2000):
            text = str(rng.randrange(60))
            store.add_reply(reply(text))
            found = find(store, str(rng.randrange(60)))
            assert found is None or len(found.tokens) <= 2

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(4)))
    assert store.num_bytes == sum(each.num_bytes for each in store.replies())


@pytest.mark.parametrize(
    ("tokens", "text", "count"),
    [
        (b"abc", "abc", 3),
        ([*b"ab", IM_END, *b"c"], "abc", 4),  # control tokens have no text
        ([*b"ab", IM_END], "ab", 3),
        ([*b"ab", *"é".encode()[:1]], "ab", 2),  # half a character
        (b"abSTOP", "ab", 2),
        ([*b"a", 0xFF, *b"b"], "a\ufffdb", 3),
        (b"abc", "xyz", 0),
        ([THINK, *b"a"], "<think>a", 2),
    ],
)
def test_tokens_are_kept_as_far_as_the_client_saw_them(
    tokens: bytes | list[int], text: str, count: int
) -> None:
    found = kept(SampledReply(list(tokens), [text]))
    assert [list(each.tokens) for each in found] == ([list(tokens)[:count]] if count else [])


@pytest.mark.parametrize(
    ("deltas", "seen", "count"),
    [
        ([("ab", b"abST"), ("STc", b"c")], "ab", 2),  # the engine holds back a stop string
        ([("a", [*b"a", 0xC3]), ("éb", [0xA9, *b"b"])], "a", 1),  # half a character
        ([("ab", b"abST"), ("STc", b"c")], "abSTc", 5),
        ([("a", b"a"), ("b", [*b"b", IM_END]), ("c", b"c")], "ab", 2),
        ([("a", b"a"), ("bc", b"bc")], "ab", 0),  # no client got just that
    ],
)
def test_a_cut_reply_has_no_more_than_its_client_saw(
    deltas: list[tuple[str, bytes | list[int]]], seen: str, count: int
) -> None:
    sampled = SampledReply()
    for text, tokens in deltas:
        sampled.add(text, tokens)
    store = ReplyStore()
    ReplyKeeper(store, FakeVocab()).keep_reply(CONTEXT, sampled, lambda token: False)
    found = store.find_cut(seen, "", CONTEXT.history_key)
    assert (len(found.tokens) if found else 0) == count


def test_control_tokens_that_are_shown_are_a_part_of_the_text() -> None:
    sampled = SampledReply([*b"a", IM_END], ["a<|im", "_end|>"])
    assert [list(each.tokens) for each in kept(sampled, IM_END)] == [[*b"a", IM_END]]
    assert [list(each.tokens) for each in kept(sampled)] == []


def test_a_reply_that_says_nothing_is_not_kept() -> None:
    assert kept(SampledReply([*b" \n"], [" \n"])) == []
    assert kept(SampledReply([IM_END], [])) == []


def test_a_reply_is_kept_as_it_is_read() -> None:
    events: list[ReplyEvent] = [ReasoningText("why"), CallStart(0, "x", "read")]
    context = ReplyContext("<a>", b"p", lambda text, is_truncated: events)
    (found,) = kept(SampledReply([*b"raw x"], ["raw x"]), context=context)
    assert found.meaning == ReplyMeaning("", "why", (("read", {}),)).digest
    assert (found.reasoning, found.generation_prompt, found.history_key) == ("why", "<a>", b"p")
    assert found.ids == ("x",)


def test_an_id_that_the_model_has_not_written_is_none() -> None:
    context = ReplyContext("<a>", b"p", lambda text, is_truncated: [CallStart(0, "x", "read")])
    (found,) = kept(SampledReply([*b"raw"], ["raw"]), context=context)
    assert found.ids == ("",)

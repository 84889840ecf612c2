"""Answers of a fake engine come back with the tokens that it has sent."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from tests.fakes.engine import delta, finished
from tests.fakes.vocab import END_TOOL_CALL
from tests.unit.api.conftest import Api
from tests.unit.chat.prompts.test_token_memo import CountingVocab

from milepost.api.completion import plan_completion
from milepost.api.gate import RequestRecord
from milepost.api.generation_fields import build_params
from milepost.api.openai.chat_request import prepare_chat, prepare_prompt, render_prompt
from milepost.api.openai.messages import parse_conversation
from milepost.api.openai.schemas import ChatFields
from milepost.chat.reply_memory.reply_meaning import (
    ReplyMeaning,
    history_key_after,
    history_keys_of,
)
from milepost.chat.reply_memory.reply_store import KeptReply
from milepost.config import ChatSettings, Settings
from milepost.protocol.messages import Delta

QUESTION = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "read"}}]
REASONING = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
PATH = "/v1/chat/completions"


def sampled(text: str, *tokens: int) -> Delta:
    return Delta(request_id=1, text=text, tokens=tokens)


def test_the_next_prompt_goes_on_from_what_was_sampled(api: Api) -> None:
    # The vocabulary would make one token of it.
    api.engine.steps = (sampled("</tool", *b"</tool"), sampled("_call>", *b"_call>"), finished())
    answer = {"role": "assistant", "content": "</tool_call>"}
    with api.connection() as send:
        send("POST", PATH, json={"messages": [QUESTION]})
        send("POST", PATH, json={"messages": [QUESTION, answer, QUESTION]})

    first, second = (list(spec.tokens) for spec in api.engine.specs)
    assert second[: len(first) + 12] == [*first, *b"</tool_call>"]
    assert END_TOOL_CALL not in second


def test_each_choice_is_known(api: Api) -> None:
    one, other = {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}
    api.engine.steps = (
        *(delta("one"), delta("two", choice=1)),
        *(finished(), finished(choice=1)),
    )
    with api.connection() as send:
        send("POST", PATH, json={"messages": [QUESTION], "n": 2, "stream": True})
        for reply in (one, other):
            body = {"messages": [QUESTION, reply, QUESTION]}
            answer_id = send("POST", PATH, json={**body, "n": 2}).json()["id"]
            assert send("GET", f"/requests/{answer_id}/why").json()["replies"]["exact"] == 1


def test_what_a_client_saw_before_it_left_is_known(api: Api) -> None:
    server = api.server()
    model = server.choose_model()
    api.engine.steps = (delta("ab"), delta("c"), asyncio.Event())

    async def leave() -> None:
        fields = ChatFields.model_validate({"messages": [QUESTION]})
        params = build_params(fields, model, -1)
        prompt, _ = await prepare_chat(server, model, fields, 100)
        async with plan_completion(server, model, [prompt], params, RequestRecord()) as completion:
            async for _, event in completion.events():
                if isinstance(event, Delta) and event.text == "c":
                    break

    asyncio.run(leave())
    key = history_key_after(b"", QUESTION)
    found = [model.replies.find_cut(text, "", key) for text in ("ab", "abc", "a", "abcd")]
    assert [each and bytes([*each.tokens]) for each in found] == [b"ab", b"abc", None, None]


def test_what_ends_after_a_clear_is_forgotten_too(api: Api) -> None:
    server = api.server()
    model = server.choose_model()
    api.engine.steps = (delta("ab"), delta("c"), finished())

    async def ask(*, clears: bool) -> None:
        fields = ChatFields.model_validate({"messages": [QUESTION]})
        params = build_params(fields, model, -1)
        prompt, _ = await prepare_chat(server, model, fields, 100)
        async with plan_completion(server, model, [prompt], params, RequestRecord()) as completion:
            async for _, event in completion.events():
                if clears and isinstance(event, Delta) and event.text == "ab":
                    model.forget_replies()

    asyncio.run(ask(clears=True))
    assert model.replies.replies() == ()
    asyncio.run(ask(clears=False))
    assert len(model.replies) == 1


def test_a_clear_forgets_the_prompts(api: Api) -> None:
    vocab = CountingVocab()
    model = api.model(vocab)
    question = {"role": "user", "content": 4000 * "x"}
    fields = ChatFields.model_validate({"messages": [question]})

    def count() -> int:
        vocab.num_chars = 0
        prepare_prompt(model, fields)
        return vocab.num_chars

    assert count() > 4000 > count()
    model.forget_replies()
    assert count() > 4000


def test_reasoning_that_the_client_left_out_is_put_back(api: Api) -> None:
    model = api.model()
    meaning = ReplyMeaning("answer", "a thought")
    key = history_key_after(b"", QUESTION)
    before = "<|im_start|>assistant\n"
    model.replies.add_reply(
        KeptReply(array("i"), before, meaning.digest, meaning.bare_digest, key, "a thought")
    )
    answer = {"role": "assistant", "content": "answer"}

    def prompt(*messages: dict[str, Any], **fields: Any) -> str:
        return render_prompt(
            model, ChatFields.model_validate({"messages": [*messages], **fields})
        ).text

    assert "a thought" not in prompt(QUESTION, answer)
    assert "a thought" in prompt(QUESTION, answer, restore_reasoning=True)
    other = {"role": "user", "content": "another"}
    assert "a thought" not in prompt(other, answer, restore_reasoning=True)
    own = {**answer, "reasoning_content": "my own"}
    assert "a thought" not in prompt(QUESTION, own, restore_reasoning=True)


def test_reasoning_about_another_image_is_not_put_back(api: Api) -> None:
    model = api.model()
    meaning = ReplyMeaning("answer", "a thought")

    def messages(source: str) -> list[dict[str, Any]]:
        part = {"type": "image_url", "image_url": source}
        return [
            {"role": "user", "content": [part]},
            {"role": "assistant", "content": "answer"},
        ]

    key = history_keys_of(parse_conversation(messages("data:,a")))[0]
    model.replies.add_reply(
        KeptReply(array("i"), "", meaning.digest, meaning.bare_digest, key, "a thought")
    )
    for source, is_there in (("data:,a", True), ("data:,b", False)):
        fields = {"messages": messages(source), "restore_reasoning": True}
        text = render_prompt(model, ChatFields.model_validate(fields)).text
        assert ("a thought" in text) is is_there


def test_a_flag_puts_reasoning_back_for_all_requests(api: Api) -> None:
    api.settings = Settings(chat=ChatSettings(restore_reasoning=True))
    model = api.model()
    meaning = ReplyMeaning("answer", "a thought")
    key = history_key_after(b"", QUESTION)
    model.replies.add_reply(
        KeptReply(array("i"), "", meaning.digest, meaning.bare_digest, key, "a thought")
    )
    messages = [QUESTION, {"role": "assistant", "content": "answer"}]

    for wanted, is_there in ((None, True), (True, True), (False, False)):
        fields = {"messages": messages, "restore_reasoning": wanted}
        text = render_prompt(model, ChatFields.model_validate(fields)).text
        assert ("a thought" in text) is is_there


@pytest.mark.parametrize("place", ["auto", "none", "deepseek-legacy"])
def test_reasoning_and_calls_are_known_wherever_they_were_put(api: Api, place: str) -> None:
    call = '<tool_call>\n{"name": "read",  "arguments": {}}\n</tool_call>'
    text = f"<think>\na thought\n</think>\n\n{call}"
    api.engine.steps = (delta(text), finished())
    body = {"messages": [QUESTION], "tools": TOOLS, "reasoning_format": place}
    with api.connection() as send:
        answer = send("POST", PATH, json=body).json()["choices"][0]["message"]
        history = [QUESTION, answer, {"role": "tool", "tool_call_id": "x", "content": "text"}]
        send("POST", PATH, json={**body, "messages": history})

    first, second = (list(spec.tokens) for spec in api.engine.specs)
    assert second[: len(first) + len(text)] == [*first, *text.encode()]


@pytest.mark.parametrize(
    ("fields", "is_open"), [({}, True), ({"add_generation_prompt": False}, False)]
)
def test_reasoning_is_open_in_a_generation_prompt_only(
    api: Api, fields: dict[str, Any], is_open: bool
) -> None:
    api.template = REASONING
    model = api.model()
    question = {"role": "user", "content": "What does `<think>` do?"}
    request = ChatFields.model_validate({"messages": [question], **fields})
    prompt = prepare_prompt(model, request)
    assert prompt.plan.in_reasoning is is_open

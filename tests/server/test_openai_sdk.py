"""The official SDK against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from tests import models
from tests.processes import RunningServer

QUESTION: list[Any] = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"model": "tiny-full", "messages": QUESTION, "temperature": 0}
ENDLESS = {"ignore_eos": True}


def ask(client: openai.OpenAI, **changes: Any) -> Any:
    """Return a short answer that does not end by itself."""
    return client.chat.completions.create(
        **{**GREEDY, "max_tokens": 12, "extra_body": ENDLESS, **changes}
    )


def test_a_chat_answer_has_text_usage_and_timings(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client)

    choice = answer.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert len(choice.message.content) >= 12
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == 12
    assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == timings["cache_n"]


def test_greedy_answers_are_the_same_and_the_second_reuses_the_first(
    openai_client: openai.OpenAI,
) -> None:
    first, second = ask(openai_client), ask(openai_client)

    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens


def test_a_stream_has_the_text_of_the_answer_in_one_piece(openai_client: openai.OpenAI) -> None:
    whole = ask(openai_client)

    chunks = list(ask(openai_client, stream=True, stream_options={"include_usage": True}))

    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == whole.choices[0].message.content
    assert sum(bool(delta) for delta in deltas) > 6
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12


def test_the_sdks_stream_helper_adds_chunks_up(openai_client: openai.OpenAI) -> None:
    text = ask(openai_client).choices[0].message.content
    stop = text[-3:]  # an answer that reaches its limit is an error to the helper

    extra = {**ENDLESS, "return_progress": True, "timings_per_token": True}
    with openai_client.chat.completions.stream(**GREEDY, stop=stop, extra_body=extra) as stream:
        final = stream.get_final_completion()

    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == text[: text.index(stop)]


def test_an_answer_can_end_by_itself(openai_client: openai.OpenAI) -> None:
    end = models.token_id(models.TURN_END)

    answer = ask(openai_client, extra_body={}, logit_bias={str(end): 100}, max_tokens=50)

    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == ""


def test_a_stop_string_ends_the_answer_before_it(openai_client: openai.OpenAI) -> None:
    text = ask(openai_client).choices[0].message.content
    stop = text[4:6]

    answer = ask(openai_client, stop=[stop, "never"])
    streamed = list(ask(openai_client, stop=stop, stream=True))

    expected = text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == expected
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == expected


def test_logprobs_of_a_chat(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, logprobs=True, top_logprobs=3)

    choice = answer.choices[0]
    assert len(choice.logprobs.content) == 12
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    for entry in choice.logprobs.content:
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert bytes(entry.bytes).decode() == entry.token


def test_logprobs_of_a_streamed_chat(openai_client: openai.OpenAI) -> None:
    whole = ask(openai_client, logprobs=True, top_logprobs=1)

    chunks = ask(openai_client, logprobs=True, top_logprobs=1, stream=True)

    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    expected = whole.choices[0].logprobs.content
    assert [entry.token for entry in entries] == [entry.token for entry in expected]


def test_choices_share_the_prompt_and_differ(openai_client: openai.OpenAI) -> None:
    sampling = {"temperature": 2.0, "seed": 11, "max_tokens": 16}

    answer = ask(openai_client, n=3, **sampling)

    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage.completion_tokens == 3 * 16


def test_more_choices_than_slots_are_refused(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"'n' is 5.* 4 sequences") as caught:
        ask(openai_client, n=5)
    assert caught.value.param == "n"


def test_a_seed_repeats_an_answer(openai_client: openai.OpenAI) -> None:
    sampling = {"temperature": 2.0, "max_tokens": 16}
    texts = [
        ask(openai_client, seed=seed, **sampling).choices[0].message.content for seed in (5, 5, 6)
    ]

    assert texts[0] == texts[1] != texts[2]


def test_no_tokens_at_all_evaluates_the_prompt(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, max_tokens=0)

    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 0


def test_text_completion_of_several_prompts(openai_client: openai.OpenAI) -> None:
    def complete(prompt: Any) -> Any:
        return openai_client.completions.create(
            model="tiny-full",
            prompt=prompt,
            temperature=0,
            max_tokens=6,
            logprobs=2,
            extra_body=ENDLESS,
        )

    both = complete(["One", "Two"])

    assert [choice.index for choice in both.choices] == [0, 1]
    for choice, prompt in zip(both.choices, ("One", "Two"), strict=True):
        assert choice.text == complete(prompt).choices[0].text
        assert "".join(choice.logprobs.tokens) == choice.text
        assert len(choice.logprobs.token_logprobs) == 6
        assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
        assert len(choice.logprobs.top_logprobs[0]) == 2


def test_a_streamed_text_completion(openai_client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "",
        "prompt": "Once",
        "temperature": 0,
        "max_tokens": 6,
        "extra_body": ENDLESS,
    }
    whole = openai_client.completions.create(**options).choices[0].text

    chunks = list(openai_client.completions.create(**options, stream=True))

    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"


def test_models(openai_client: openai.OpenAI) -> None:
    listed = openai_client.models.list().data

    assert [model.id for model in listed] == ["tiny-full"]
    assert openai_client.models.retrieve("tiny-full").id == "tiny-full"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, "no model 'gpt-4o' here; served is tiny-full"),
        ({"messages": []}, openai.BadRequestError, "messages is empty"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            openai.BadRequestError,
            'role is "wizard"; use one of system',
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
            openai.BadRequestError,
            "messages[0].content[0] is an image, but the model is loaded without a projector",
        ),
        ({"temperature": "hot"}, openai.BadRequestError, "'temperature' must be a number"),
        (
            {"messages": [{"role": "user", "content": "word " * 9000}]},
            openai.BadRequestError,
            "does not fit into the context of 8192 tokens",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            openai.BadRequestError,
            "'response_format.json_schema.schema' is missing",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_bad_requests_get_a_sentence(
    openai_client: openai.OpenAI,
    changes: dict[str, Any],
    error: type[openai.APIStatusError],
    message: str,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        ask(openai_client, stream=stream, **changes)
    assert message in caught.value.message


def test_an_error_that_only_the_engine_finds(openai_client: openai.OpenAI) -> None:
    faulty = {"grammar": "root ::= ("}

    with pytest.raises(openai.BadRequestError, match="grammar"):
        ask(openai_client, extra_body=faulty)
    with pytest.raises(openai.APIError, match="grammar"):  # the stream's last event
        list(ask(openai_client, stream=True, extra_body=faulty))


def test_text_parts_are_joined_and_tools_are_rendered(openai_client: openai.OpenAI) -> None:
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    parts = [{"type": "text", "text": "Tell me about "}, {"type": "text", "text": "the sea."}]
    messages = [{"role": "user", "content": parts}]

    plain = ask(openai_client, messages=messages)
    tooled = ask(openai_client, messages=messages, tools=[tool], tool_choice="auto")

    assert tooled.usage.prompt_tokens > plain.usage.prompt_tokens + 20


def test_four_streams_run_side_by_side(server: RunningServer) -> None:
    async def run() -> list[tuple[int, str]]:
        order: list[tuple[int, str]] = []

        def note(number: int, text: str) -> None:
            order.append((number, text))

        async def read(client: openai.AsyncOpenAI, number: int) -> None:
            messages: list[Any] = [{"role": "user", "content": f"Question {number}"}]
            stream = await client.chat.completions.create(
                model="",
                messages=messages,
                max_tokens=200,  # a client may be slower than the engine for a while
                stream=True,
                temperature=0,
                extra_body=ENDLESS,
            )
            async for chunk in stream:
                note(number, chunk.choices[0].delta.content or "")

        address = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(read(client, number) for number in range(4)))
        return order

    order = asyncio.run(run())

    numbers = [number for number, text in order if text]
    firsts = [numbers.index(number) for number in range(4)]
    lasts = [len(numbers) - 1 - numbers[::-1].index(number) for number in range(4)]
    assert max(firsts) < min(lasts), "a stream began only when another had ended"
    texts = ["".join(text for n, text in order if n == number) for number in range(4)]
    assert all(len(text) >= 30 for text in texts)
    assert len(set(texts)) == 4

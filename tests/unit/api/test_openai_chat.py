from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.fakes.engine import delta, finished
from tests.fakes.vocab import IM_END, IM_START
from tests.unit.api.conftest import Api
from tests.unit.api.events import read_events

from milepost.config import ServerSettings, Settings
from milepost.protocol.messages import Boundary, PromptProgress, TokenLogprob
from milepost.workers.client import WaitingLine

PROGRESS = PromptProgress(
    request_id=1, num_tokens=10, num_cached=4, num_processed=8, elapsed_ms=5.0
)
LOGPROB = TokenLogprob(
    token=97, token_bytes=b"a", logprob=-0.5, top=((97, b"a", -0.5), (195, b"\xc3", float("-inf")))
)


def test_an_answer_in_one_piece(api: Api) -> None:
    answer = api.chat(delta("ab"), delta("c"), finished()).json()

    ChatCompletion.model_validate(answer, strict=True)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "abc"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "completion_tokens": 3,
        "prompt_tokens": 10,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert answer["timings"] == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 12.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 3,
        "predicted_ms": 30.0,
        "predicted_per_token_ms": 10.0,
        "predicted_per_second": 100.0,
    }


def test_a_stream_begins_with_the_role_and_ends_with_usage(api: Api) -> None:
    steps = (delta("ab"), delta(""), delta("c"), finished("limit"))

    events = read_events(api.chat(*steps, stream=True, stream_options={"include_usage": True}))

    assert events.pop() == "[DONE]"
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
    choices = [event["choices"][0] for event in events[:-1]]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "ab"},
        {"content": "c"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert events[-2]["timings"]["predicted_n"] == 3
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert events[-1]["timings"]["cache_n"] == 4
    assert len({event["id"] for event in events}) == 1


def test_no_usage_unless_asked(api: Api) -> None:
    events = read_events(api.chat(stream=True))

    assert not any("usage" in event for event in events if event != "[DONE]")


def test_progress_comes_only_when_asked_and_never_repeats_the_role(api: Api) -> None:
    steps = (PROGRESS, delta("a"), finished())

    plain = read_events(api.chat(*steps, stream=True))
    events = read_events(api.chat(*steps, stream=True, return_progress=True))

    assert not any("prompt_progress" in event for event in plain)
    assert api.engine.specs[1].wants_progress
    assert events[1]["prompt_progress"] == {
        "total": 10,
        "cache": 4,
        "processed": 8,
        "time_ms": 5.0,
    }
    assert events[1]["choices"][0]["delta"] == {}


def test_timings_and_tokens_with_every_token(api: Api) -> None:
    steps = (PROGRESS, delta("ab"), delta("c"), finished())

    events = read_events(api.chat(*steps, stream=True, timings_per_token=True, return_tokens=True))

    assert [event["timings"]["predicted_n"] for event in events[1:3]] == [2, 3]
    assert events[1]["timings"]["prompt_n"] == 4
    assert events[1]["timings"]["cache_n"] == 4
    assert events[1]["choices"][0]["tokens"] == [97, 98]


def test_logprobs(api: Api) -> None:
    steps = (delta("a", logprobs=(LOGPROB,)), finished())
    expected = [
        {
            "id": 97,
            "token": "a",
            "bytes": [97],
            "logprob": -0.5,
            "top_logprobs": [
                {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
                {"id": 195, "token": "\ufffd", "bytes": [195], "logprob": -9999.0},
            ],
        }
    ]

    answer = api.chat(*steps, logprobs=True, top_logprobs=2).json()
    events = read_events(api.chat(*steps, logprobs=True, top_logprobs=2, stream=True))

    assert answer["choices"][0]["logprobs"] == {"content": expected}
    assert events[1]["choices"][0]["logprobs"] == {"content": expected}
    assert api.engine.specs[0].num_logprobs == 2


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, -1),
        ({"logprobs": False}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"n_probs": 3}, 3),
        ({"n_probs": 0}, -1),
    ],
)
def test_how_many_logprobs_are_asked_for(
    api: Api, fields: dict[str, Any], num_logprobs: int
) -> None:
    api.chat(**fields)

    assert api.engine.specs[0].num_logprobs == num_logprobs


def test_several_choices_share_the_prompt(api: Api) -> None:
    steps = (delta("a"), delta("b", choice=1), finished(choice=1), finished("limit"))

    answer = api.chat(*steps, n=2).json()

    assert api.engine.specs[0].num_choices == 2
    assert [c["message"]["content"] for c in answer["choices"]] == ["a", "b"]
    assert [c["finish_reason"] for c in answer["choices"]] == ["length", "stop"]
    assert answer["usage"]["prompt_tokens"] == 10
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"n": 3}, 400, "'n' is 3, but this server decodes 2 sequences at a time"),
        ({"n": 0}, 400, "'n' is 0"),
        ({"top_logprobs": 3}, 400, "'top_logprobs' needs 'logprobs' to be true"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "must be between 0 and 20, but is 21"),
        ({"max_tokens": -2}, 400, "'max_tokens' must be between -1 and 2147483647, but is -2"),
        ({"messages": []}, 400, "messages is empty"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, 'messages[0].role is "wizard"'),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}
                ]
            },
            400,
            "messages[0].content[0] is an image, but the model is loaded without a projector",
        ),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "the prompt has 619 tokens"),
        ({"model": "gpt-4"}, 404, "there is no model 'gpt-4' here; served is tiny"),
        ({"model": 5}, 400, "'model' must be a string"),
        (
            {"response_format": {"type": "xml"}},
            400,
            'must be an object with the type "text", "json',
        ),
        ({"continue_final_message": True}, 501, "'continue_final_message' is not supported yet"),
        ({"reasoning_effort": "huge"}, 400, "'reasoning_effort' must be one of none, minimal"),
        ({"sse_ping_interval": -2}, 400, "'sse_ping_interval' must be between -1"),
        ({"post_sampling_probs": True}, 501, "'post_sampling_probs' is not supported"),
        ({"chat_template_kwargs": [1]}, 400, "'chat_template_kwargs' must be an object"),
        ({"chat_template_kwargs": {"messages": []}}, 400, "must not set 'messages'"),
    ],
)
def test_what_is_refused_before_the_engine_hears_of_it(
    api: Api, fields: dict[str, Any], status: int, message: str
) -> None:
    response = api.chat(stream=True, **fields)

    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert api.engine.specs == []


@pytest.mark.parametrize("name", ["", None, "tiny"])
def test_names_of_the_model(api: Api, name: str | None) -> None:
    assert api.chat(model=name).status_code == 200


def test_the_request_reaches_the_engine(api: Api) -> None:
    api.chat(
        stop=["x", ""], max_completion_tokens=5, max_tokens=9, seed=3, cache_prompt=False, top_k=1
    )

    spec = api.engine.specs[0]
    assert list(spec.tokens) == [IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n"]
    assert (spec.stop, spec.max_tokens, spec.cache_prompt) == (("x",), 5, False)
    assert (spec.sampling.seed, spec.sampling.top_k) == (3, 1)


def test_boundaries_reach_the_engine(api: Api) -> None:
    system = {"role": "system", "content": "Be brief. " * 40}
    api.chat(messages=[system, {"role": "user", "content": "hi"}])

    spec = api.engine.specs[0]
    places = {boundary.kind: boundary.pos for boundary in spec.boundaries}
    assert set(places) == {"message_end", "system_end", "prompt_end"}
    assert list(spec.tokens)[places["system_end"] :][:5] == list(b"user\n")
    assert list(spec.tokens)[places["prompt_end"] :] == [IM_START, *b"assistant\n"]
    assert spec.boundaries[-1] == Boundary(places["prompt_end"], "prompt_end", 1, "user")
    assert not spec.keeps_prompt_end


def test_breakpoints_of_the_client_reach_the_engine_and_no_template(api: Api) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    facts = {"type": "text", "text": "facts", **mark}
    messages = [
        {"role": "user", "content": [facts, {"type": "text", "text": "more"}]},
        {"role": "assistant", "content": "yes", **mark},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "gone"},
        {"role": "user", "content": "on", **mark},
    ]
    tool = {"type": "function", "function": {"name": "read", **mark}, **mark}
    api.chat(messages=messages, tools=[tool])

    spec = api.engine.specs[0]
    marks = [b for b in spec.boundaries if b.kind == "breakpoint"]
    assert [(b.message_index, b.role) for b in marks] == [(0, "user"), (1, "assistant")]
    assert list(spec.tokens)[marks[0].pos - 11 : marks[0].pos] == [IM_START, *b"user\nfacts"]
    assert list(spec.tokens)[marks[1].pos - 5 : marks[1].pos] == [*b"yes", IM_END, *b"\n"]
    assert b"ephemeral" not in bytes(token for token in spec.tokens if token < 256)


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_503_and_no_stream(api: Api, stream: bool) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    api.engine.line, api.engine.num_open = WaitingLine(max_waiting=3), 5
    api.settings = Settings(server=ServerSettings(metrics=True))
    with api.connection() as send:
        response = send("POST", "/v1/chat/completions", json={**chat, "stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "with 3 waiting for 2 slots" in response.json()["error"]["message"]
        assert api.engine.specs == []
        assert send("GET", "/requests").json()["requests"] == []
        assert "milepost_requests_refused_total 1.0\n" in send("GET", "/metrics").text
        api.engine.num_open = 4
        assert send("POST", "/v1/chat/completions", json=chat).status_code == 200


def test_leaving_the_generation_follows_the_answer(api: Api) -> None:
    api.chat()
    api.chat(stream=True)

    assert [generation.was_left for generation in api.engine.generations] == [True, True]

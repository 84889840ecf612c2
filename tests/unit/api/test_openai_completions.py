from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion
from tests.fakes.engine import delta, finished
from tests.unit.api.conftest import Api
from tests.unit.api.events import read_events

from milepost.api.openai.completions import text_logprobs
from milepost.protocol.messages import TokenLogprob


def logprob(piece: bytes, *rivals: bytes) -> TokenLogprob:
    return TokenLogprob(
        token=1, token_bytes=piece, logprob=-0.5, top=tuple((2, rival, -1.0) for rival in rivals)
    )


def test_several_prompts_make_choices_prompt_by_prompt(api: Api) -> None:
    steps = (delta("a"), delta("b", choice=1), finished(), finished(choice=1))

    answer = api.complete(*steps, prompt=["x", [104, 105]], n=2).json()

    Completion.model_validate(answer, strict=True)
    assert [c["text"] for c in answer["choices"]] == ["a", "b", "a", "b"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [list(spec.tokens) for spec in api.engine.specs] == [[120], [104, 105]]
    assert answer["usage"]["prompt_tokens"] == 20
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}


def test_a_stream_ends_with_done(api: Api) -> None:
    events = read_events(api.complete(delta("a"), finished("limit"), stream=True))

    assert events[-1] == "[DONE]"
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["a", ""]
    assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_logprobs_are_parallel_lists_and_offsets_run_on_in_a_stream(api: Api) -> None:
    first = delta("né", logprobs=(logprob(b"n"), logprob(b"\xc3"), logprob(b"\xa9")))
    steps = (first, delta("x", logprobs=(logprob(b"x", b"x", b"y"),)), finished())

    events = read_events(api.complete(*steps, logprobs=2, stream=True))

    assert events[0]["choices"][0]["logprobs"] == {
        "tokens": ["n", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{}, {}, {}],
        "text_offset": [0, 1, 2],
    }
    assert events[1]["choices"][0]["logprobs"]["text_offset"] == [2]
    assert events[1]["choices"][0]["logprobs"]["top_logprobs"] == [{"x": -1.0, "y": -1.0}]


def test_offsets_count_characters() -> None:
    shape = text_logprobs([logprob("né".encode()), logprob(b"x")], first_offset=5)

    assert shape.text_offset == (5, 7)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"prompt": []}, 400, "prompt is an empty list"),
        ({"prompt": None}, 400, "prompt must be a string"),
        ({"prompt": [999]}, 400, "prompt[0] is token 999"),
        ({"prompt": ""}, 400, "prompt is empty"),
        ({"echo": True}, 501, "'echo' is not supported"),
        ({"suffix": "x"}, 501, "'suffix' is not supported"),
        ({"best_of": 2}, 501, "'best_of' is not supported"),
        ({"logprobs": -1}, 400, "'logprobs' must be between 0"),
        ({"prompt": ["x", "y" * 512]}, 400, "512 tokens"),
    ],
)
def test_what_is_refused(api: Api, fields: dict[str, Any], status: int, message: str) -> None:
    response = api.complete(**fields)

    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert api.engine.specs == []

"""Keys, limits and switches of a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.processes import RunningServer
from tests.server.conftest import API_KEY, SMALL_CONTEXT_TOKENS

HEADERS = {"Authorization": f"Bearer {API_KEY}"}
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def client(server: RunningServer, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_a_wrong_key_is_refused_and_the_right_one_taken(guarded_server: RunningServer) -> None:
    with client(guarded_server, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with client(guarded_server, API_KEY) as friend:
        assert friend.models.list().data[0].id == "first"
    assert guarded_server.http.get("/health").json() == {"status": "ok"}
    assert API_KEY not in guarded_server.read_log()


def test_every_name_of_the_model_is_taken(guarded_server: RunningServer) -> None:
    with client(guarded_server, API_KEY) as friend:
        for name in ("first", "second", "tiny-full", "tiny-full.gguf", ""):
            answer = friend.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1)
            assert answer.model == "first"


def test_a_body_over_the_limit(guarded_server: RunningServer) -> None:
    response = guarded_server.http.post(
        "/v1/chat/completions", content=b" " * (2 << 20), headers=HEADERS
    )

    assert response.status_code == 413
    assert "over the limit of 1048576" in response.json()["error"]["message"]


def test_a_body_over_the_limit_that_comes_in_chunks(guarded_server: RunningServer) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    response = guarded_server.http.post("/v1/completions", content=chunks(), headers=HEADERS)

    assert response.status_code == 413
    assert guarded_server.http.get("/health").status_code == 200


def test_a_prompt_over_the_context_names_both_numbers(guarded_server: RunningServer) -> None:
    body = {"prompt": [40] * 300}

    error = guarded_server.http.post("/v1/completions", json=body, headers=HEADERS).json()["error"]

    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, SMALL_CONTEXT_TOKENS)


def test_an_answer_that_fills_the_context_ends_with_length(guarded_server: RunningServer) -> None:
    body = {"prompt": [40] * 200, "ignore_eos": True}

    answer = guarded_server.http.post("/v1/completions", json=body, headers=HEADERS).json()

    assert answer["choices"][0]["finish_reason"] == "length"
    assert 50 <= answer["usage"]["completion_tokens"] <= SMALL_CONTEXT_TOKENS - 200 + 1


def test_malformed_json(guarded_server: RunningServer) -> None:
    response = guarded_server.http.post(
        "/v1/chat/completions", content=b'{"messages": [}', headers=HEADERS
    )

    assert response.status_code == 400
    assert "line 1 column 15" in response.json()["error"]["message"]


def test_slots_are_off_and_metrics_on(guarded_server: RunningServer) -> None:
    slots = guarded_server.http.get("/slots", headers=HEADERS)
    metrics = guarded_server.http.get("/metrics", headers=HEADERS)

    assert slots.status_code == 501
    assert slots.json()["error"]["type"] == "not_supported_error"
    assert "milepost_requests_processing 0.0\n" in metrics.text
    assert guarded_server.http.get("/metrics").status_code == 401


def test_props_of_a_real_model(guarded_server: RunningServer) -> None:
    props = guarded_server.http.get("/props", headers=HEADERS).json()

    assert props["model_path"] == "tiny-full.gguf"
    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["n_ctx"] == SMALL_CONTEXT_TOKENS
    assert props["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": [[token, False] for token in range(320)]},
        {"temperature": 1e300, "top_k": 0, "top_p": 0, "min_p": 1},
        {"typical_p": 0, "xtc_probability": 1, "xtc_threshold": 0},
        {"mirostat": 1, "mirostat_tau": -1, "mirostat_eta": 1e30},
        {"mirostat": 2, "mirostat_tau": 0},
        {"repeat_penalty": 0, "repeat_last_n": -1},
        {"dry_multiplier": 1e30, "dry_allowed_length": 0, "dry_penalty_last_n": 2**31 - 1},
        {"dynatemp_range": 1e30, "dynatemp_exponent": -5},
        {"top_n_sigma": 0},
        {"samplers": []},
        {"samplers": ["adaptive_p"], "adaptive_target": 0.5, "adaptive_decay": 0},
        {"min_keep": 2**31 - 1, "n_probs": 2**31 - 1},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_no_sampling_values_bring_the_engine_down(
    guarded_server: RunningServer, fields: dict[str, Any]
) -> None:
    body = {"prompt": "x x x x x", "max_tokens": 8, "seed": 1, **fields}

    response = guarded_server.http.post("/v1/completions", json=body, headers=HEADERS)

    assert response.status_code < 500
    assert guarded_server.http.get("/health").status_code == 200

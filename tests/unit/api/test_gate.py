from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.fakes.engine import delta, finished
from tests.unit.api.conftest import Api

from milepost.api.app import create_app
from milepost.config import ServerSettings, Settings
from milepost.errors import EngineDied

KEYED = Settings(server=ServerSettings(api_keys=("first", "sécret")))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("starting", "Loading model"),
        ("loading", "Loading model"),
        ("restarting", "the engine has ended unexpectedly and is restarting"),
        ("failed", "the model cannot be served: no such file"),
    ],
)
def test_nothing_but_the_root_page_works_before_the_model_is_loaded(
    api: Api, state: str, message: str
) -> None:
    api.engine.state, api.engine.failure = state, "no such file"

    response = api.get("/health")

    assert response.status_code == 503
    assert response.json() == {
        "error": {"code": 503, "message": message, "type": "unavailable_error", "param": None}
    }
    assert response.headers["retry-after"] == "2"
    assert api.chat().status_code == 503
    assert api.get("/").status_code == 200


def test_health_once_it_is(api: Api) -> None:
    assert api.get("/health").json() == api.get("/v1/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer first"}, 200),
        ({"X-Api-Key": "first"}, 200),
        ({"X-Api-Key": "firs"}, 401),
    ],
)
def test_keys(api: Api, headers: dict[str, str], status: int) -> None:
    api.settings = KEYED

    response = api.get("/v1/models", headers=headers)

    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"


def test_a_key_need_not_be_ascii(api: Api) -> None:
    api.settings = KEYED

    header = "Bearer sécret".encode()

    assert api.get("/v1/models", headers={b"authorization": header}).status_code == 200


def test_health_and_the_root_page_need_no_key(api: Api) -> None:
    api.settings = KEYED

    assert api.get("/health").status_code == api.get("/").status_code == 200


def test_options_invite_no_foreign_origin(api: Api) -> None:
    api.settings = KEYED

    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    response = api.request("OPTIONS", "/v1/chat/completions", headers=headers)

    assert response.status_code == 204
    assert response.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS"
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_unknown_routes_and_methods(api: Api) -> None:
    missing, wrong = api.post("/v1/nothing"), api.get("/v1/chat/completions")

    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "there is no POST /v1/nothing"
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["message"] == "GET /v1/chat/completions is not allowed here"


def test_an_engine_that_dies_is_a_503(api: Api) -> None:
    response = api.chat(delta("a"), EngineDied("the engine has ended"))

    assert response.status_code == 503
    assert response.json()["error"]["message"] == "the engine has ended"


def test_a_fault_of_ours_is_a_500_without_its_text_but_logged(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    response = api.chat(ValueError("the inside"))

    assert response.status_code == 500
    assert "the inside" not in response.text
    assert "Traceback" not in response.text
    assert "the inside" in caplog.text


def test_a_body_over_the_limit_is_refused_by_its_length(api: Api) -> None:
    api.settings = Settings(server=ServerSettings(max_body_bytes=100))

    response = api.chat(stop=["x" * 200])

    assert response.status_code == 413
    assert "over the limit of 100" in response.json()["error"]["message"]


def test_a_body_over_the_limit_is_refused_while_it_arrives(api: Api) -> None:
    api.settings = Settings(server=ServerSettings(max_body_bytes=100))
    num_sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal num_sent
        for _ in range(10):
            num_sent += 1
            yield b"x" * 60

    response = api.request("POST", "/v1/chat/completions", content=chunks())

    assert response.status_code == 413


def test_the_content_type_does_not_matter(api: Api) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'

    response = api.request(
        "POST", "/v1/chat/completions", content=body, headers={"Content-Type": "text/plain"}
    )

    assert response.status_code == 200


def test_one_line_per_request_without_its_text(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="milepost")

    api.chat(delta("answer"), finished(), messages=[{"role": "user", "content": "question"}])
    api.get("/health")
    api.get("/a%0Ab")

    lines = [record.getMessage() for record in caplog.records if record.name == "milepost.api.gate"]
    assert len(lines) == 2
    assert lines[0].startswith("POST /v1/chat/completions 200 ")
    report = "from ram (2.5 MB in 1.2 ms), prefilled 6 in 2 chunks, 1 of them again, kept 1"
    assert f", prompt 27 (cached 4), decoded 3, {report} checkpoints, branch, chat" in lines[0]
    assert lines[1].startswith("GET /a%0Ab 404 ")
    assert "question" not in caplog.text
    assert "words" not in caplog.text


def test_the_words_at_a_divergence_are_told_to_who_asks_for_debug(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="milepost")

    api.chat()

    assert "parts at token 5: 'new words' instead of 'old words'" in caplog.messages[-1]
    assert caplog.messages[-1].startswith("chatcmpl-")
    assert caplog.records[-1].levelno == logging.DEBUG


def test_large_requests_are_prepared_beside_the_loop(api: Api) -> None:
    response = api.chat(messages=[{"role": "user", "content": "x" * 50_000}])

    assert response.json()["error"]["type"] == "exceed_context_size_error"
    assert response.json()["error"]["n_ctx"] == 512


def test_a_client_that_leaves_is_noted(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="milepost")

    async def run() -> None:
        api.engine.steps = (delta("a"), asyncio.Event())
        app = create_app(api.server())
        messages: Iterator[dict[str, object]] = iter(
            [
                {"type": "http.request", "body": b'{"prompt": "hi"}', "more_body": False},
                {"type": "http.disconnect"},
            ]
        )

        async def receive() -> dict[str, object]:
            return next(messages)

        async def send(message: object) -> None: ...

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [],
            "query_string": b"",
        }
        await asyncio.wait_for(app(scope, receive, send), 5)

    asyncio.run(run())

    assert api.engine.generations[0].was_left
    assert "client left" in caplog.text

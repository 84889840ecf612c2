"""A server with two models: each request goes to the one that it names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from tests.fakes.engine import FakeEngine
from tests.unit.api.conftest import Api

from milepost.api.app import create_app
from milepost.api.server import Server
from milepost.errors import InvalidRequest, NotFound


@pytest.fixture
def two(api: Api) -> Server:
    """Return a server of "tiny" and "other", each with an engine of its own."""
    other = replace(api.model(), name="other", engine=cast(Any, FakeEngine()))
    return replace(api.server(), models=(api.model(), other))


def ask(server: Server, method: str, path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


@pytest.mark.parametrize(("name", "index"), [(None, 0), ("", 0), ("tiny", 0), ("other", 1)])
def test_a_model_is_chosen_by_its_name(two: Server, name: str | None, index: int) -> None:
    assert two.choose_model(name) is two.models[index]


def test_an_unknown_model_is_refused_with_those_that_are_served(two: Server) -> None:
    with pytest.raises(NotFound, match=r"no model 'x' here; served is tiny, other"):
        two.choose_model("x")
    with pytest.raises(InvalidRequest, match="'model' must be a string"):
        two.choose_model(7)


def test_a_request_goes_to_the_engine_of_its_model(two: Server) -> None:
    body = {"model": "other", "messages": [{"role": "user", "content": "hi"}]}
    answer = ask(two, "POST", "/v1/chat/completions", json=body).json()
    assert answer["model"] == "other"
    first, second = (cast(FakeEngine, model.engine) for model in two.models)
    assert (len(first.specs), len(second.specs)) == (0, 1)


def test_a_pin_goes_to_the_engine_that_had_the_request(two: Server) -> None:
    body = {"model": "other", "prompt": "hi"}

    async def run() -> None:
        transport = httpx.ASGITransport(create_app(two))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/v1/completions", json=body)
            await client.post("/cache/pin", json={"request_id": answer.json()["id"]})

    asyncio.run(run())
    first, second = (cast(FakeEngine, model.engine) for model in two.models)
    assert (first.changes, second.changes) == ([], [("pin", 1)])


def test_all_models_are_listed(two: Server) -> None:
    listed = ask(two, "GET", "/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["tiny", "other"]

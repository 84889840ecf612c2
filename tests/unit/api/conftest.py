"""An app over a fake engine, and a client that talks to it without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from tests.fakes.engine import FakeEngine, Step
from tests.fakes.vocab import FakeVocab
from tests.models import DEFAULT_TEMPLATE

from milepost.api.app import create_app
from milepost.api.server import ServedModel, Server
from milepost.chat.prompts.prepare import PromptPreparer
from milepost.chat.reply_memory.reply_store import ReplyStore
from milepost.chat.templates.loading import load_templates
from milepost.config import Settings
from milepost.media.loader import MediaLoader


@dataclass
class Api:
    """The app with the engine under it; both may be changed until the first request."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    settings: Settings = field(default_factory=Settings)
    template: str = DEFAULT_TEMPLATE

    def server(self, vocab: FakeVocab | None = None) -> Server:
        """Return what the app works with."""
        return Server(settings=self.settings.server, models=(self.model(vocab),))

    def model(self, vocab: FakeVocab | None = None) -> ServedModel:
        """Return a model as it is served."""
        vocab = vocab or FakeVocab()
        replies = ReplyStore()
        return ServedModel(
            name="tiny",
            settings=self.settings,
            engine=cast(Any, self.engine),
            vocab=vocab,
            prompts=PromptPreparer(load_templates({"": self.template}, vocab), vocab, replies),
            media=MediaLoader(self.settings.media, self.settings.server.max_body_bytes),
            replies=replies,
            created=1_700_000_000,
        )

    @contextmanager
    def connection(self) -> Iterator[Callable[..., httpx.Response]]:
        """Yield `send(method, path, **options)`, for many requests to one app."""
        transport = httpx.ASGITransport(create_app(self.server()))
        with asyncio.Runner() as runner:
            client = httpx.AsyncClient(transport=transport, base_url="http://test")

            def send(method: str, path: str, **options: Any) -> httpx.Response:
                return runner.run(client.request(method, path, **options))

            yield send
            runner.run(client.aclose())

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request and return the whole answer."""
        with self.connection() as send:
            return send(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Send a GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a POST with a JSON object."""
        return self.request("POST", path, json=fields)

    def chat(self, *steps: Step, **fields: Any) -> httpx.Response:
        """Ask for a chat completion; `steps`, if any, are what the engine answers."""
        self._set_steps(steps)
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", **{"messages": messages, **fields})

    def complete(
        self, *steps: Step, path: str = "/v1/completions", **fields: Any
    ) -> httpx.Response:
        """Ask for a text completion."""
        self._set_steps(steps)
        return self.post(path, **{"prompt": "hi", **fields})

    def _set_steps(self, steps: Sequence[Step]) -> None:
        if steps:
            self.engine.steps = steps


@pytest.fixture
def api() -> Api:
    """An app over a fake engine."""
    return Api()

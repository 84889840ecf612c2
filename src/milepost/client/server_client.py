"""The client of benchmarks and of `milepost warm`.

Sends chats to an OpenAI-compatible server and times the answers. Where
the server has llama-server's other endpoints, they give the size of the context and the tokens of a
prompt; elsewhere these stay unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from milepost.client.media_tokens import Tokens, media_parts, put_between, stand_in
from milepost.errors import BenchmarkFailed
from milepost.traces.answer import AnswerReader, ChatAnswer
from milepost.traces.trace import Message, Tool

CONNECT_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 300.0  # arbitrary; a large model from a slow disk
POLL_S = 0.1
HEALTH_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTraits:
    """What is known about a server once it has answered."""

    name: str  # what it calls itself, or its address
    model: str  # the name that requests must give
    num_context_tokens: int | None = None  # for one request
    is_native: bool = False  # it has llama-server's endpoints and fields
    bos_text: str = ""  # what its prompts may begin with
    abilities: frozenset[str] = frozenset()  # of what requests may need: "images", "audio"
    media_marker: str = ""  # what its /apply-template writes for an image


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """One chat request to be sent."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    max_tokens: int
    cancel_after_fraction: float | None = None  # of the prefill
    cancel_after_s: float | None = None  # the same as a guess, for servers that report no progress


@dataclass(slots=True)
class ServerClient:
    """A connection to one server; use it as a context manager."""

    url: str
    api_key: str = ""
    model: str = ""  # "" takes the first that the server lists
    timeout_s: float = 3600.0  # longest silence; a long prefill on a slow machine is one
    traits: ServerTraits = field(init=False)
    _http: httpx.AsyncClient = field(init=False, repr=False)
    _media_counts: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        self.traits = ServerTraits(name=self.url, model=self.model)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
                # A connection per request: llama-server closes kept ones after a number of requests
                # or seconds, and what is sent at that moment is lost.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise BenchmarkFailed(f"{self.url} is not the URL of a server: {error}") from None

    async def __aenter__(self) -> ServerClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._http.aclose()

    async def connect(self) -> ServerTraits:
        """Wait until the server has loaded its model, and learn its traits.

        Raises BenchmarkFailed, at once when nobody listens there.
        """
        try:
            await self._http.get("/health", timeout=HEALTH_TIMEOUT_S)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise BenchmarkFailed(f"no server to measure at {self.url}: {reason}") from None
        await self.wait_until_ready(LOAD_TIMEOUT_S)
        props = await self._get_props()
        settings = props.get("default_generation_settings") or {}
        self.traits = ServerTraits(
            name=str(props.get("build_info") or self.url),
            model=self.model or await self._first_model(),
            num_context_tokens=settings.get("n_ctx"),
            is_native="chat_template" in props,
            bos_text=str(props.get("bos_token") or ""),
            abilities=_read_abilities(props),
            media_marker=str(props.get("media_marker") or ""),
        )
        return self.traits

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Return when the server takes requests. Raises BenchmarkFailed when time is up."""
        deadline_s = time.monotonic() + timeout_s
        while reason := await self._why_unready():
            if time.monotonic() > deadline_s:
                raise BenchmarkFailed(f"no server to measure at {self.url}: {reason}")
            await asyncio.sleep(POLL_S)

    async def tokenize_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Tokens:
        """Return the prompt of a chat as this server's template and vocabulary make it.

        Raises BenchmarkFailed when the template refuses the messages.
        """
        body = _chat_body(messages, tools)
        media = [stand_in(part, await self._count_media(part)) for part in media_parts(messages)]
        return put_between(await self._tokenize_texts(body, len(media)), media)

    async def tokenize_text(self, text: str) -> Tokens:
        """Return the tokens of a text in the middle of a prompt."""
        return await self._tokenize({"content": text, "add_special": False})

    async def chat(self, call: ChatCall) -> ChatAnswer:
        """Send a chat, and return what its answer cost.

        Returns a failed answer when the server broke off. Raises BenchmarkFailed when it refused
        the request or cannot be reached: no further request would fare better.
        """
        reader = AnswerReader(time.perf_counter())
        try:
            async with self._stream("/v1/chat/completions", self._call_body(call)) as response:
                was_cancelled = await _read_answer(response, reader, call)
        except httpx.ConnectError as error:
            raise BenchmarkFailed(f"the server at {self.url} is gone: {error}") from None
        except httpx.HTTPStatusError as error:
            return _failed(reader, str(error))
        except (httpx.TransportError, ValueError) as error:
            return _failed(reader, f"the answer broke off: {error or type(error).__name__}")
        if not (was_cancelled or reader.is_finished):
            return _failed(reader, "the answer ended without its end mark")
        return reader.finish("cancelled" if was_cancelled else "ok", time.perf_counter())

    def _call_body(self, call: ChatCall) -> dict[str, Any]:
        body = _chat_body(call.messages, call.tools) | {
            "max_tokens": call.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.traits.model:
            body["model"] = self.traits.model
        if call.cancel_after_fraction is not None and self.traits.is_native:
            body["return_progress"] = True
        return body

    @contextlib.asynccontextmanager
    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        async with self._http.stream("POST", path, json=body) as response:
            if response.is_error:
                await response.aread()
                _refuse(response)
            yield response

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise BenchmarkFailed(f"the server at {self.url} is gone: {error}") from None
        if response.is_error:
            raise BenchmarkFailed(_reason_of(response))
        answer: dict[str, Any] = response.json()
        return answer

    async def _tokenize(self, body: dict[str, Any]) -> Tokens:
        answer = await self._post("/tokenize", {**body, "parse_special": True})
        return np.array(answer["tokens"], np.int32)

    async def _tokenize_texts(self, body: dict[str, Any], num_media: int) -> list[Tokens]:
        """Return the tokens of a prompt's text: before, between and after its media."""
        text = str((await self._post("/apply-template", body))["prompt"])
        pieces = text.split(self.traits.media_marker) if num_media else [text]
        if len(pieces) != num_media + 1:
            raise BenchmarkFailed(
                f"the template of {self.url} writes {len(pieces) - 1} of {num_media} images"
            )
        bos = self.traits.bos_text
        # Where the template writes the begin token, the tokenizer must not add another.
        wants_bos = not (bos and text.startswith(bos))
        return [
            await self._tokenize({"content": piece, "add_special": wants_bos and i == 0})
            for i, piece in enumerate(pieces)
        ]

    async def _count_media(self, part: dict[str, Any]) -> int:
        """Return how many tokens an image takes: those that a prompt with it has beside text."""
        key = repr(part)
        if key not in self._media_counts:
            body = _chat_body([{"role": "user", "content": [part]}], ())
            answer = await self._post("/v1/chat/completions/input_tokens", body)
            texts = await self._tokenize_texts(body, 1)
            self._media_counts[key] = int(answer["input_tokens"]) - sum(map(len, texts))
        return self._media_counts[key]

    async def _why_unready(self) -> str:
        """Return why the server takes no requests yet; "" when it does."""
        for path in ("/health", "/v1/models"):  # the latter where there is no /health
            try:
                response = await self._http.get(path, timeout=HEALTH_TIMEOUT_S)
            except httpx.TransportError as error:
                return str(error) or type(error).__name__
            if response.is_success:
                return ""
            if response.status_code != httpx.codes.NOT_FOUND:
                return _reason_of(response)
        return "it answers neither /health nor /v1/models"

    async def _get_props(self) -> dict[str, Any]:
        try:
            response = await self._http.get("/props")
            props = response.json() if response.is_success else {}
        except (httpx.TransportError, ValueError):
            return {}
        return props if isinstance(props, dict) else {}

    async def _first_model(self) -> str:
        try:
            response = await self._http.get("/v1/models")
            return str(response.json()["data"][0]["id"]) if response.is_success else ""
        except (httpx.TransportError, ValueError, LookupError, TypeError):
            return ""


def _read_abilities(props: dict[str, Any]) -> frozenset[str]:
    modalities = props.get("modalities") or {}
    names = {"vision": "images", "audio": "audio"}
    return frozenset(name for key, name in names.items() if modalities.get(key))


async def _read_answer(response: httpx.Response, reader: AnswerReader, call: ChatCall) -> bool:
    """Read the answer; return True as soon as the request is to be cancelled."""
    delay_s = None if call.cancel_after_fraction is None else call.cancel_after_s
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            async for line in response.aiter_lines():
                reader.read_line(line, time.perf_counter())
                if _is_over(reader, call.cancel_after_fraction):
                    return True
            return False
    return True


def _is_over(reader: AnswerReader, fraction: float | None) -> bool:
    """Whether a request that is cancelled after a fraction of its prefill has come that far."""
    if fraction is None:
        return False
    done = reader.prefilled_fraction()
    return reader.has_begun() or (done is not None and done >= fraction)


def _chat_body(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    return body


def _failed(reader: AnswerReader, reason: str) -> ChatAnswer:
    answer = reader.finish("failed", time.perf_counter())
    return ChatAnswer(status="failed", took_s=answer.took_s, error=answer.error or reason)


def _refuse(response: httpx.Response) -> None:
    """Raise BenchmarkFailed for what no retry can help, HTTPStatusError for a passing fault."""
    reason = _reason_of(response)
    if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise httpx.HTTPStatusError(reason, request=response.request, response=response)
    raise BenchmarkFailed(reason)


def _reason_of(response: httpx.Response) -> str:
    """Return one sentence about an error answer."""
    try:
        error = response.json()["error"]
        message = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        message = response.text
    sentence = " ".join(message.split())[:500] or response.reason_phrase
    hint = "; give its key with --api-key" if response.status_code in (401, 403) else ""
    return f"the server answered {response.status_code}: {sentence}{hint}"

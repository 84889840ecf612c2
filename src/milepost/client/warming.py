"""`milepost warm`: has a server compute system prompts and tools before anybody asks.

What later conversations begin with is then in the server's cache, and on its disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from milepost.client.server_client import ChatCall, ServerClient
from milepost.errors import BenchmarkFailed
from milepost.kinds import SYSTEM_ROLES
from milepost.traces.trace import Message, Tool, read_trace

FIRST_WORDS: Message = {"role": "user", "content": "Hello."}  # where a file names none


@dataclass(frozen=True, slots=True)
class Beginning:
    """What conversations begin with."""

    messages: Sequence[Message]  # of the system, and a first one of the user
    tools: Sequence[Tool]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What one beginning cost."""

    number: int
    count: int
    num_prompt_tokens: int | None
    num_cached: int | None
    took_s: float


def read_beginnings(path: Path) -> list[Beginning]:
    """Return the different beginnings in a trace, the body of a chat request, or a plain text.

    Raises BenchmarkFailed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BenchmarkFailed(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise BenchmarkFailed(f"{path} cannot be read: {error.strerror}") from None
    first = _parse_object(text.partition("\n")[0])
    if first is not None and "trace" in first:
        return _different(_read_requests(path))
    body = _parse_object(text)
    if body is None:
        body = {"messages": [{"role": "system", "content": text}]}
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages or not isinstance(tools, list):
        raise BenchmarkFailed(f'{path} has no "messages": it is not the body of a chat request')
    return [_begin(messages, tools)]


async def warm_server(
    server: ServerClient, beginnings: Sequence[Beginning], show: Callable[[Warmed], None]
) -> None:
    """Send each beginning, and have one token answered. Raises BenchmarkFailed."""
    await server.connect()
    for number, beginning in enumerate(beginnings, start=1):
        call = ChatCall(messages=beginning.messages, tools=beginning.tools, max_tokens=1)
        answer = await server.chat(call)
        if answer.status != "ok":
            raise BenchmarkFailed(f"beginning {number} was not computed: {answer.error}")
        show(
            Warmed(
                number,
                len(beginnings),
                answer.num_prompt_tokens,
                answer.num_cached,
                answer.took_s,
            )
        )


def run_warm(path: Path, server: ServerClient, show: Callable[[Warmed], None]) -> None:
    """Warm a server with what a file names. Raises BenchmarkFailed."""
    beginnings = read_beginnings(path)

    async def run() -> None:
        async with server:
            await warm_server(server, beginnings, show)

    asyncio.run(run())


def describe_warmed(warmed: Warmed) -> str:
    """Return a line for a beginning that is ready."""
    tokens = "" if warmed.num_prompt_tokens is None else f" {warmed.num_prompt_tokens:,} tokens,"
    cached = "" if warmed.num_cached is None else f" {warmed.num_cached:,} of them known before,"
    return f"{warmed.number}/{warmed.count}:{tokens}{cached} ready after {warmed.took_s:.1f} s"


def _read_requests(path: Path) -> Iterator[Beginning]:
    for request in read_trace(path).requests():
        if not request.needs:
            yield _begin(request.messages, request.tools)


def _begin(messages: Sequence[Message], tools: Sequence[Tool]) -> Beginning:
    """Return the system messages at the front, and the first one of the user."""
    head = [message for message in messages if message.get("role") in SYSTEM_ROLES]
    user = next((message for message in messages if message.get("role") == "user"), FIRST_WORDS)
    return Beginning([*head, user], tools)


def _different(beginnings: Iterator[Beginning]) -> list[Beginning]:
    """Return those that differ in their system messages or tools, the first of each."""
    found: dict[str, Beginning] = {}
    for each in beginnings:
        key = json.dumps([each.messages[:-1], each.tools], sort_keys=True)
        found.setdefault(key, each)
    return list(found.values())


def _parse_object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

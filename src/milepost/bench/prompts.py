"""The tokens of the requests of a trace, from the server's own template and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.client.media_tokens import Tokens
from milepost.client.server_client import ServerClient
from milepost.errors import BenchmarkFailed
from milepost.traces.trace import Message, TraceRequest


class PromptMaker:
    """Asks a server for prompts, and checks that they fit into its context."""

    def __init__(self, server: ServerClient, max_tokens: int) -> None:
        self._server = server
        self._max_tokens = max_tokens

    async def check_longest(self, requests: Sequence[TraceRequest]) -> None:
        """Raise BenchmarkFailed when the longest of these requests is too long for the server."""
        longest = max(requests, key=_count_bytes)
        await self.make(longest, longest.messages)

    async def make(self, request: TraceRequest, messages: Sequence[Message]) -> Tokens:
        """Return the prompt of a request. Raises BenchmarkFailed."""
        try:
            prompt = await self._server.tokenize_prompt(messages, request.tools)
        except BenchmarkFailed as error:
            raise BenchmarkFailed(f"request {request.id} ({request.kind}): {error}") from None
        num_needed = len(prompt) + self._max_tokens
        num_context_tokens = self._server.traits.num_context_tokens
        if num_context_tokens is not None and num_needed > num_context_tokens:
            raise BenchmarkFailed(
                f"request {request.id} needs a context of {num_needed} tokens, but the server at "
                f"{self._server.url} has {num_context_tokens}; start it with a larger -c"
            )
        return prompt


def _count_bytes(request: TraceRequest) -> int:
    return len(msgspec.json.encode((request.messages, request.tools)))

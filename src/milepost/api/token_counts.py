"""`/v1/chat/completions/input_tokens`: how long the prompt of a chat is, without computing it.

Images and audio are counted by the engine, from their sizes: nothing is encoded.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.http_body import JsonResponse, parse_body, read_body
from milepost.api.openai.chat_request import prepare_chat
from milepost.api.openai.schemas import ChatFields
from milepost.api.server import ServedModel, Server
from milepost.protocol.messages import PromptInput


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the shape of OpenAI's for responses, as llama-server has it."""

    input_tokens: int
    object: str = "response.input_tokens"


def build_token_counts_router(server: Server) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.post("/v1/chat/completions/input_tokens")
    @router.post("/chat/completions/input_tokens")
    async def count_chat_tokens(request: Request) -> Response:
        body = await read_body(request, server.settings.max_body_bytes)
        fields = parse_body(ChatFields, body)
        model = server.choose_model(fields.model)
        prompt, _ = await prepare_chat(server, model, fields, len(body))
        return JsonResponse(InputTokens(input_tokens=await count_tokens(model, prompt.input)))

    return router


async def count_tokens(model: ServedModel, prompt: PromptInput) -> int:
    """Return how many tokens a prompt has, its media included."""
    counts = await model.engine.count_media(prompt.media) if prompt.media else ()
    return prompt.num_tokens + sum(counts)

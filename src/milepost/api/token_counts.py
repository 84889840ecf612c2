"""`/v1/chat/completions/input_tokens`: how long the prompt of a chat is, without computing it.

Images and audio are counted by the engine, from their sizes: nothing is encoded.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.completion import Prompt
from milepost.api.fields import parse_body
from milepost.api.http_body import JsonResponse, read_body
from milepost.api.openai.chat_prompt import prepare_chat_prompt
from milepost.api.openai.schemas import ChatFields
from milepost.api.services import Services


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the shape of OpenAI's for responses, as llama-server has it."""

    input_tokens: int
    object: str = "response.input_tokens"


def build_token_counts_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.post("/v1/chat/completions/input_tokens")
    @router.post("/chat/completions/input_tokens")
    async def count_chat_tokens(request: Request) -> Response:
        body = await read_body(request, services.settings.server.max_body_bytes)
        fields = parse_body(ChatFields, body)
        services.check_model_name(fields.model)
        chat = await prepare_chat_prompt(services, fields, len(body))
        return JsonResponse(InputTokens(input_tokens=await count_tokens(services, chat.prompt)))

    return router


async def count_tokens(services: Services, prompt: Prompt) -> int:
    """Return how many tokens a prompt has, its media included."""
    counts = await services.engine.count_media(prompt.input.media) if prompt.input.media else ()
    return prompt.input.num_tokens + sum(counts)

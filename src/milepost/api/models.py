"""`/v1/models`: what is served, in OpenAI's shape with llama-server's `meta`."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.api.http_body import JsonResponse
from milepost.api.services import Services


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a model."""

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    description: str
    memory_kind: str


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the list."""

    id: str
    aliases: tuple[str, ...]
    object: str = "model"
    created: int
    owned_by: str = "milepost"
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of models."""

    object: str = "list"
    data: tuple[ModelShape, ...]


def build_models_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/v1/models")
    @router.get("/models")
    async def list_models() -> Response:
        return JsonResponse(ModelList(data=(model_shape(services),)))

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        services.check_model_name(name)
        return JsonResponse(model_shape(services))

    return router


def model_shape(services: Services) -> ModelShape:
    """Return the entry of the served model."""
    model = services.model
    return ModelShape(
        id=services.model_name,
        aliases=services.settings.server.alias,
        created=services.created,
        meta=ModelMeta(
            n_vocab=model.num_vocab,
            n_ctx=model.num_context_tokens,
            n_ctx_train=model.num_context_train_tokens,
            n_embd=model.num_embd,
            n_params=model.num_params,
            size=model.size_bytes,
            description=model.description,
            memory_kind=model.memory_kind,
        ),
    )

"""`/v1/models`: what is served, in OpenAI's shape with llama-server's `meta`."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.api.http_body import JsonResponse
from milepost.api.services import Services
from milepost.protocol.messages import ModelInfo


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


class ArchitectureShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes and gives."""

    input_modalities: tuple[str, ...]  # "text", "image", "audio"
    output_modalities: tuple[str, ...] = ("text",)


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of llama-server's second list, where some clients look for "multimodal"."""

    name: str
    model: str
    type: str = "model"
    capabilities: tuple[str, ...]


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the list."""

    id: str
    aliases: tuple[str, ...]
    object: str = "model"
    created: int
    owned_by: str = "milepost"
    architecture: ArchitectureShape
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of models."""

    models: tuple[ModelCapabilities, ...]
    object: str = "list"
    data: tuple[ModelShape, ...]


def build_models_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/v1/models")
    @router.get("/models")
    async def list_models() -> Response:
        capabilities = capabilities_shape(services)
        return JsonResponse(ModelList(models=(capabilities,), data=(model_shape(services),)))

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
        architecture=ArchitectureShape(input_modalities=input_modalities(model)),
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


def capabilities_shape(services: Services) -> ModelCapabilities:
    """Return what llama-server says of the abilities of the served model."""
    is_multimodal = len(input_modalities(services.model)) > 1
    return ModelCapabilities(
        name=services.model_name,
        model=services.model_name,
        capabilities=("completion", "multimodal") if is_multimodal else ("completion",),
    )


def input_modalities(model: ModelInfo) -> tuple[str, ...]:
    """Return what a model takes."""
    taken = {"text": True, "image": model.has_vision, "audio": model.has_audio}
    return tuple(name for name, is_taken in taken.items() if is_taken)

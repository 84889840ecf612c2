"""`/v1/models`: what is served, in OpenAI's shape with llama-server's `meta`."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.api.http_body import JsonResponse
from milepost.api.server import ServedModel, Server
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


def build_models_router(server: Server) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/v1/models")
    @router.get("/models")
    async def list_models() -> Response:
        return JsonResponse(
            ModelList(
                models=tuple(map(capabilities_shape, server.models)),
                data=tuple(map(model_shape, server.models)),
            )
        )

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        return JsonResponse(model_shape(server.choose_model(name)))

    return router


def model_shape(model: ServedModel) -> ModelShape:
    """Return the entry of a served model."""
    info = model.info
    return ModelShape(
        id=model.name,
        aliases=model.aliases,
        created=model.created,
        architecture=ArchitectureShape(input_modalities=input_modalities(info)),
        meta=ModelMeta(
            n_vocab=info.num_vocab,
            n_ctx=info.num_context_tokens,
            n_ctx_train=info.num_context_train_tokens,
            n_embd=info.num_embd,
            n_params=info.num_params,
            size=info.size_bytes,
            description=info.description,
            memory_kind=info.memory_kind,
        ),
    )


def capabilities_shape(model: ServedModel) -> ModelCapabilities:
    """Return what llama-server says of the abilities of a served model."""
    is_multimodal = len(input_modalities(model.info)) > 1
    return ModelCapabilities(
        name=model.name,
        model=model.name,
        capabilities=("completion", "multimodal") if is_multimodal else ("completion",),
    )


def input_modalities(info: ModelInfo) -> tuple[str, ...]:
    """Return what a model takes."""
    taken = {"text": True, "image": info.has_vision, "audio": info.has_audio}
    return tuple(name for name, is_taken in taken.items() if is_taken)

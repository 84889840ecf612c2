"""`/requests` and `/cache`: why a prompt had to be computed, what is held, and control of it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.fields import field_error, parse_body
from milepost.api.http_body import JsonResponse, read_body
from milepost.api.request_log import RequestRecord
from milepost.api.schemas_cache import (
    FreedAnswer,
    PinnedAnswer,
    RequestIdFields,
    RequestList,
    cache_answer,
    request_shape,
    why_answer,
)
from milepost.api.services import Services
from milepost.errors import NotFound
from milepost.protocol.cache import CacheAction

DEFAULT_NODES = 64
MAX_NODES = 1024  # the engine's limit


def build_cache_router(services: Services) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    max_body_bytes = services.settings.server.max_body_bytes

    @router.get("/requests")
    async def requests() -> Response:
        records = services.requests.latest()
        return JsonResponse(RequestList(requests=tuple(map(request_shape, records))))

    @router.get("/requests/{request_id}/why")
    async def why(request_id: str) -> Response:
        return JsonResponse(why_answer(_find(services, request_id)))

    @router.get("/cache")
    async def cache(request: Request) -> Response:
        summary = await services.engine.get_cache(_read_max_nodes(request))
        return JsonResponse(cache_answer(summary))

    @router.delete("/cache")
    async def clear() -> Response:
        changed = await services.engine.change_cache("clear")
        services.forget_replies()
        return JsonResponse(FreedAnswer(freed_bytes=changed.freed_bytes))

    @router.post("/cache/pin")
    async def pin(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        await _change(services, fields.request_id, "pin")
        return JsonResponse(PinnedAnswer(request_id=fields.request_id, pinned=True))

    @router.post("/cache/unpin")
    async def unpin(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        await _change(services, fields.request_id, "unpin")
        return JsonResponse(PinnedAnswer(request_id=fields.request_id, pinned=False))

    @router.post("/cache/drop")
    async def drop(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        freed_bytes = await _change(services, fields.request_id, "drop")
        services.forget_replies(_find(services, fields.request_id).history_keys)
        return JsonResponse(FreedAnswer(freed_bytes=freed_bytes))

    return router


def _find(services: Services, request_id: str) -> RequestRecord:
    record = services.requests.find(request_id)
    if record is None:
        raise NotFound(
            f"there is no request {request_id!r} among the last ones; GET /requests lists them"
        )
    return record


async def _change(services: Services, request_id: str, action: CacheAction) -> int:
    """Pin, unpin or drop the conversations of a request; return the bytes that became free."""
    freed_bytes = 0
    for engine_id in _find(services, request_id).engine_ids:
        changed = await services.engine.change_cache(action, engine_id)
        if not changed.found:
            raise NotFound(
                f"the engine does not know the tokens of {request_id} (any more): it has not "
                "ended, was dropped before, or the engine was started again since"
            )
        freed_bytes += changed.freed_bytes
    return freed_bytes


def _read_max_nodes(request: Request) -> int:
    text = request.query_params.get("nodes", str(DEFAULT_NODES))
    if not text.isdecimal() or int(text) > MAX_NODES:
        raise field_error("nodes", f"must be between 0 and {MAX_NODES}", text)
    return int(text)

"""`/requests` and `/cache`: why a prompt had to be computed, what is held, and control of it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.gate import RequestRecord
from milepost.api.http_body import JsonResponse, field_error, parse_body, read_body
from milepost.api.schemas_cache import (
    FreedAnswer,
    PinnedAnswer,
    RequestIdFields,
    RequestList,
    cache_answer,
    request_shape,
    why_answer,
)
from milepost.api.server import Server
from milepost.errors import NotFound
from milepost.protocol.cache import CacheAction

DEFAULT_NODES = 64
MAX_NODES = 1024  # the engine's limit


def build_cache_router(server: Server) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    max_body_bytes = server.settings.max_body_bytes

    @router.get("/requests")
    async def requests() -> Response:
        records = server.requests.latest()
        return JsonResponse(RequestList(requests=tuple(map(request_shape, records))))

    @router.get("/requests/{request_id}/why")
    async def why(request_id: str) -> Response:
        return JsonResponse(why_answer(_find(server, request_id)))

    @router.get("/cache")
    async def cache(request: Request) -> Response:
        summary = await server.choose_model().engine.get_cache(_read_max_nodes(request))
        return JsonResponse(cache_answer(summary))

    @router.delete("/cache")
    async def clear() -> Response:
        model = server.choose_model()
        changed = await model.engine.change_cache("clear")
        model.forget_replies()
        return JsonResponse(FreedAnswer(freed_bytes=changed.freed_bytes))

    @router.post("/cache/pin")
    async def pin(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        await _change(server, fields.request_id, "pin")
        return JsonResponse(PinnedAnswer(request_id=fields.request_id, pinned=True))

    @router.post("/cache/unpin")
    async def unpin(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        await _change(server, fields.request_id, "unpin")
        return JsonResponse(PinnedAnswer(request_id=fields.request_id, pinned=False))

    @router.post("/cache/drop")
    async def drop(request: Request) -> Response:
        fields = parse_body(RequestIdFields, await read_body(request, max_body_bytes))
        freed_bytes = await _change(server, fields.request_id, "drop")
        record = _find(server, fields.request_id)
        server.choose_model(record.model_name).forget_replies(record.history_keys)
        return JsonResponse(FreedAnswer(freed_bytes=freed_bytes))

    return router


def _find(server: Server, request_id: str) -> RequestRecord:
    record = server.requests.find_record(request_id)
    if record is None:
        raise NotFound(
            f"there is no request {request_id!r} among the last ones; GET /requests lists them"
        )
    return record


async def _change(server: Server, request_id: str, action: CacheAction) -> int:
    """Pin, unpin or drop the conversations of a request; return the bytes that became free."""
    freed_bytes = 0
    record = _find(server, request_id)
    engine = server.choose_model(record.model_name).engine
    for engine_id in record.engine_ids:
        changed = await engine.change_cache(action, engine_id)
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

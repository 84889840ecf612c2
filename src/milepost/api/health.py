"""`/health`, `/` and `/metrics`: is it up, what is it, and how is it doing."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from milepost import __version__
from milepost.api.http_body import JsonResponse
from milepost.api.server import Server
from milepost.errors import NotSupported
from milepost.metrics.catalogue import FrontEndCounts


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/health` once the model is loaded; before, the gate refuses the request."""

    status: str = "ok"


def build_health_router(server: Server) -> APIRouter:
    """Return the routes."""
    router = APIRouter()

    @router.get("/health")
    @router.get("/v1/health")
    async def health() -> Response:
        return JsonResponse(Health())

    @router.get("/")
    async def root() -> Response:
        return PlainTextResponse(
            f"milepost {__version__} serves {server.choose_model().name}.\n"
            "Point an OpenAI client at /v1, for example /v1/chat/completions.\n"
        )

    @router.get("/metrics")
    async def metrics() -> Response:
        if not server.settings.metrics:
            raise NotSupported(
                "This server does not support metrics endpoint. Start it with `--metrics`"
            )  # llama-server's words: clients look for them
        # Takes 0.1 s to import, which a server without metrics need not spend.
        from milepost.metrics.prometheus import CONTENT_TYPE, render_metrics

        model = server.choose_model()
        status = await model.engine.get_status()
        replies = model.prompts.reply_counts
        counts = FrontEndCounts(
            num_refused=model.engine.line.num_refused,
            num_exact_replies=replies.exact,
            num_unknown_replies=replies.unknown,
            num_changed_replies=replies.changed,
            num_bare_replies=replies.without_reasoning,
            num_rewritten_replies=replies.written_differently,
        )
        return Response(render_metrics(status, counts), media_type=CONTENT_TYPE)

    return router

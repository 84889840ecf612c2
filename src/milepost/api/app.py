"""Puts the routes of all dialects and the gate together into one ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from milepost.api.cache_control import build_cache_router
from milepost.api.error_responses import answer_http_exception
from milepost.api.gate import RequestGate
from milepost.api.health import build_health_router
from milepost.api.models import build_models_router
from milepost.api.native.completion import build_native_completion_router
from milepost.api.native.routes import build_native_router
from milepost.api.openai.chat import build_chat_router
from milepost.api.openai.completions import build_completions_router
from milepost.api.server import Server
from milepost.api.token_counts import build_token_counts_router


def create_app(server: Server) -> FastAPI:
    """Return the app of a server.

    It has no generated documents: requests are parsed from raw bytes, so they would say nothing.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.close()

    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        exception_handlers={HTTPException: answer_http_exception},
    )
    for build_router in (
        build_chat_router,
        build_token_counts_router,
        build_completions_router,
        build_native_completion_router,
        build_native_router,
        build_models_router,
        build_cache_router,
        build_health_router,
    ):
        app.include_router(build_router(server))
    app.add_middleware(
        RequestGate, api_keys=server.settings.api_keys, check_ready=server.check_ready
    )
    return app

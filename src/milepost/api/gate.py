"""The outermost layer: every request passes here, and every exception ends here.

Refuses requests without a key and, as llama-server does, all but the root page while the model is
loading; answers OPTIONS without inviting foreign origins; turns exceptions into answers; writes
one line per request into the log.
"""

from __future__ import annotations

import hmac
import logging
import time

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.api.error_responses import error_response, log_error
from milepost.api.request_log import RequestRecord, describe_words, record_of
from milepost.api.services import LOADING, Services
from milepost.errors import AuthenticationFailed, ClientLeft, MilepostError, Unavailable

logger = logging.getLogger(__name__)

KEYLESS_PATHS = frozenset({"/", "/health", "/v1/health"})  # llama-server's choice
QUIET_PATHS = frozenset({"/health", "/v1/health", "/metrics"})  # polled: logged as DEBUG
METHODS = "GET, POST, DELETE, OPTIONS"


class RequestGate:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._engine = services.engine
        self._keys = tuple(key.encode() for key in services.settings.server.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        record = record_of(scope)
        record.path, record.received_s = scope["path"], time.time()
        try:
            await self._answer(scope, receive, _noting(send, record))
        finally:
            path = scope["path"]
            level = logging.DEBUG if path in QUIET_PATHS else logging.INFO
            record.elapsed_s = time.monotonic() - start_s
            logger.log(level, "%s", record.line(scope["method"], path, record.elapsed_s))
            if logger.isEnabledFor(logging.DEBUG) and (words := describe_words(record)):
                logger.debug("%s %s", record.answer_id, words)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            if scope["method"] == "OPTIONS":
                await Response(status_code=204, headers={"Allow": METHODS})(scope, receive, send)
                return
            if scope["path"] not in KEYLESS_PATHS:
                self._check_key(Headers(scope=scope))
            self._check_ready(scope["path"])
            await self._app(scope, receive, send)
        except ClientLeft:
            record.was_abandoned = True
        except Exception as error:  # the edge: nothing may reach the HTTP server as a traceback
            log_error(error, f"{scope['method']} {scope['path']}")
            if record.status:  # an answer has begun; it can only be cut off
                raise
            await error_response(error)(scope, receive, send)

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or headers.get("x-api-key", "")
        # all keys are compared, and each in constant time: timing tells nothing about them
        matches = [hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys]
        if not any(matches):
            raise AuthenticationFailed("Invalid API Key")

    def _check_ready(self, path: str) -> None:
        if path == "/" or self._engine.state == "ready":
            return
        raise self._unready()

    def _unready(self) -> MilepostError:
        if self._engine.state == "failed":
            return Unavailable(f"the model cannot be served: {self._engine.failure}")
        if self._engine.state == "restarting":
            return Unavailable("the engine has ended unexpectedly and is restarting")
        return Unavailable(LOADING)


def _noting(send: Send, record: RequestRecord) -> Send:
    """Return a `send` that notes the status of the answer."""

    async def send_and_note(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
        await send(message)

    return send_and_note

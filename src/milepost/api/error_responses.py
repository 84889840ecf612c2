"""Turns every exception into llama-server's `{"error": {"code", "message", "type", "param"}}`.

The same object serves as an HTTP body and, once the headers of a stream are out, as its last event.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import UNSET, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from milepost.errors import (
    AuthenticationFailed,
    ContextExceeded,
    EncodingNotSupported,
    InvalidRequest,
    MethodNotAllowed,
    MilepostError,
    NotFound,
    Unavailable,
)

logger = logging.getLogger(__name__)


class ErrorShape(msgspec.Struct, frozen=True, kw_only=True):
    """The object under `error`."""

    code: int
    message: str
    type: str
    param: str | None = None
    n_prompt_tokens: int | UnsetType = UNSET  # with exceed_context_size_error
    n_ctx: int | UnsetType = UNSET  # with exceed_context_size_error


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error."""

    error: ErrorShape


def describe_error(error: Exception) -> ErrorBody:
    """Return what a client is told; an exception that is not ours says nothing but that."""
    if not isinstance(error, MilepostError):
        return ErrorBody(
            error=ErrorShape(
                code=500,
                message="an error inside the server, which its log describes",
                type=MilepostError.kind,
            )
        )
    shape = ErrorShape(
        code=error.http_status,
        message=str(error),
        type=error.kind,
        param=error.param if isinstance(error, InvalidRequest) else None,
    )
    if isinstance(error, ContextExceeded):
        shape = msgspec.structs.replace(
            shape, n_prompt_tokens=error.num_prompt_tokens, n_ctx=error.num_context_tokens
        )
    return ErrorBody(error=shape)


def error_response(error: Exception) -> Response:
    """Return the HTTP answer for an exception."""
    body = describe_error(error)
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, AuthenticationFailed):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, EncodingNotSupported):
        headers["Accept-Encoding"] = "gzip"
    return Response(
        msgspec.json.encode(body),
        status_code=body.error.code,
        headers=headers,
        media_type="application/json",
    )


def log_error(error: Exception, subject: str) -> None:
    """Log an exception that is our fault; a client's own mistakes are not worth a line."""
    if isinstance(error, MilepostError):
        if error.http_status >= 500 and not isinstance(error, (InvalidRequest, Unavailable)):
            logger.error("%s failed: %s", subject, error)
    else:
        logger.error("%s failed", subject, exc_info=error)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Answer for the router: no such route, or not with this method."""
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"{what} is not allowed here"))
    elif error.status_code == 404:
        response = error_response(NotFound(f"there is no {what}"))
    else:
        response = error_response(InvalidRequest(str(error.detail)))
        response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response

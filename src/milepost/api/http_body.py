"""Bodies in and out: a request body is read up to a limit, an answer is encoded with msgspec."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from milepost.errors import BodyTooLarge, ClientLeft


class JsonResponse(Response):
    """An answer made of a msgspec Struct or plain data."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return msgspec.json.encode(content)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises BodyTooLarge as soon as it is known to be over the limit: from Content-Length, or while
    a body without one arrives. What the client still sends is thrown away by the HTTP server.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(num_bytes, max_bytes)
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ClientLeft("the client left while it sent the request") from error
    return b"".join(chunks)


def _too_large(num_bytes: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body has {num_bytes} bytes or more, over the limit of {max_bytes}; "
        "send less, or start the server with a larger --max-body-mib"
    )

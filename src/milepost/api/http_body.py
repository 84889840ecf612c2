"""Bodies in and out: requests are read up to a limit and parsed, answers are JSON or a stream.

Requests are parsed straight from bytes. Unknown fields are ignored and null means "not given", as
in llama-server. Fields of mixed type (`stop`, `prompt`, `logit_bias`, ...) are declared `Any`
and read by functions of their own, because pydantic's errors for unions say little.

Streams are server-sent events:

    data: {json}\\n\\n      an event
    :\\n\\n                 a comment, sent when the stream was silent for a while
    data: [DONE]\\n\\n      the end, in OpenAI's dialects

What an event says is the business of the dialects; they hand in a `StreamSource`, and the response
writes it while it watches the client.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import zlib
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from milepost.api.error_responses import describe_error, log_error
from milepost.errors import BodyTooLarge, ClientLeft, EncodingNotSupported, InvalidRequest

MAX_SHOWN_CHARS = 60  # of a value that is quoted in an error
WANTED = {  # pydantic's type of error -> what would have been right
    "missing": "is required",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be an integer of at most 64 bits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}

# Of request bodies: by their names in HTTP, whether they are gzip.
ENCODINGS = {"": False, "identity": False, "gzip": True, "x-gzip": True}
GZIP_WBITS = 16 + zlib.MAX_WBITS
MAX_PART_BYTES = 1 << 20  # that are decompressed at once: some milliseconds
# The escapes of a JSON text, one after the other. A pair of surrogates is one character.
ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)

Number = Annotated[float, Strict()]
Boolean = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def _refuse_text(value: Any) -> Any:
    # pydantic would take "12" and true for 12; 12.0 is fine, for llama-server too
    if isinstance(value, (str, bool)):
        raise PydanticCustomError("int_type", "must be an integer")
    return value


Integer = Annotated[int, BeforeValidator(_refuse_text)]


class RequestModel(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, protected_namespaces=())


M = TypeVar("M", bound=RequestModel)


def parse_body(model: type[M], body: bytes) -> M:
    """Read a request body; raises InvalidRequest that names the first field that is wrong.

    Halves of surrogate pairs are read as U+FFFD: clients that cut texts between 16-bit units put
    them into their histories, and must not be locked out of these.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)[0]
    mended = ESCAPES.sub(_mend_escape, body) if details["type"] == "json_invalid" else body
    if mended != body:
        return parse_body(model, mended)
    raise _explain(details, body)


def quote(value: Any) -> str:
    """Return a value as it stands in a sentence: JSON, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def field_error(param: str, wanted: str, value: Any) -> InvalidRequest:
    """Return the error for a field: `wanted` is "must be ..."."""
    return InvalidRequest(f"'{param}' {wanted}, but is {quote(value)}", param=param)


class JsonResponse(Response):
    """An answer made of a msgspec Struct or plain data."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        return msgspec.json.encode(content)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request, decompressed and without a byte order mark.

    Raises BodyTooLarge as soon as it is known to be over the limit: from Content-Length, or while
    a body without one arrives, or is decompressed. What the client still sends is thrown away by
    the HTTP server. Raises EncodingNotSupported for a compression that is not read.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise EncodingNotSupported(
            f"the request body has the content encoding {quote(encoding)}; "
            "send it as it is, or compressed with gzip"
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        parts = request.stream()
        async for part in _decompress(parts) if ENCODINGS[encoding] else parts:
            num_bytes += len(part)
            if num_bytes > max_bytes:
                raise _too_large(num_bytes, max_bytes)
            chunks.append(part)
    except ClientDisconnect as error:
        raise ClientLeft("the client left while it sent the request") from error
    return b"".join(chunks).removeprefix(codecs.BOM_UTF8)


class StreamSource(Protocol):
    """What a dialect streams."""

    async def __aenter__(self) -> StreamSource:
        """Start the work; an error here is still a plain HTTP answer."""

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop the work, if it still goes on."""

    def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the stream ends."""


def encode_event(event: msgspec.Struct) -> bytes:
    """Return an event as a frame."""
    return b"data: " + _encoder.encode(event) + b"\n\n"


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return what it returns; cancel it and raise ClientLeft when the client goes.

    The body of the request must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class EventStreamResponse(Response):
    """Streams a source to the client, with pings, until it ends or the client leaves.

    Headers go out as soon as the source has started, before its first frame.
    """

    def __init__(self, source: StreamSource, ping_interval_s: float) -> None:
        self.status_code = 200
        self.background = None
        self._source = source
        self._ping_interval_s = ping_interval_s  # <= 0: no pings
        self._last_sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; called by Starlette."""
        async with self._source:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            self._last_sent_s = asyncio.get_running_loop().time()
            await run_while_connected(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        pinger = asyncio.ensure_future(self._ping(send)) if self._ping_interval_s > 0 else None
        try:
            await self._write_frames(send)
        finally:
            if pinger is not None:
                pinger.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_frames(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        try:
            async for frame in self._source.frames():
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._last_sent_s = now()
        except Exception as error:  # the edge: the headers are out, so the stream must say it
            log_error(error, "a stream")
            frame = encode_event(describe_error(error))
            await send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _ping(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        while True:
            silence_s = now() - self._last_sent_s
            if silence_s < self._ping_interval_s:
                await asyncio.sleep(self._ping_interval_s - silence_s)
                continue
            await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._last_sent_s = now()


async def _decompress(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes of a gzip file in parts of a bounded size; between them others may go on."""
    gzip = zlib.decompressobj(wbits=GZIP_WBITS)
    has_any = False
    try:
        async for part in parts:
            while part:
                if gzip.eof:  # another file follows, which is as if it were the same
                    gzip = zlib.decompressobj(wbits=GZIP_WBITS)
                has_any = True
                yield gzip.decompress(part, MAX_PART_BYTES)
                part = gzip.unconsumed_tail or gzip.unused_data
                await asyncio.sleep(0)
    except zlib.error as error:
        raise InvalidRequest(f"the request body is not valid gzip: {error}") from None
    if has_any and not gzip.eof:
        raise InvalidRequest("the request body is not valid gzip: its end is missing")


def _mend_escape(found: re.Match[bytes]) -> bytes:
    """Return an escape of a JSON text, U+FFFD for half a surrogate pair."""
    return rb"\ufffd" if found["half"] else found[0]


def _explain(details: ErrorDetails, body: bytes) -> InvalidRequest:
    kind = details["type"]
    if kind == "json_invalid":
        if not body.strip():
            return InvalidRequest("the request has no body; a JSON object is expected")
        reason = details.get("ctx", {}).get("error", details["msg"])
        return InvalidRequest(f"the body is not valid JSON: {reason}")
    param = _path(details["loc"])
    if not param:
        return InvalidRequest("the body must be a JSON object")
    wanted = WANTED.get(kind)
    if kind == "missing":
        return InvalidRequest(f"'{param}' is required", param=param)
    if wanted is None:
        return InvalidRequest(f"'{param}': {details['msg']}", param=param)
    return field_error(param, wanted, details["input"])


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def _too_large(num_bytes: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body has {num_bytes} bytes or more, over the limit of {max_bytes}; "
        "send less, or start the server with a larger --max-body-mib"
    )


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

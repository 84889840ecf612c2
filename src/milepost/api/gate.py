"""The outermost layer: every request passes here, and every exception ends here.

Refuses requests without a key and, as llama-server does, all but the root page while the model is
loading; answers OPTIONS without inviting foreign origins; turns exceptions into answers; keeps a
record of each request, and writes one line of it into the log. Neither holds texts, but for the
excerpts at a divergence that a cache report has.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.api.error_responses import error_response, log_error
from milepost.chat.prompts.reply_matching import ReplyCounts
from milepost.errors import AuthenticationFailed, ClientLeft
from milepost.protocol.cache import CacheReport
from milepost.protocol.messages import Finished

logger = logging.getLogger(__name__)

KEY = "milepost.record"  # in the ASGI scope
MAX_REQUESTS = 256  # the engine remembers as many for pins and drops
KEYLESS_PATHS = frozenset({"/", "/health", "/v1/health"})  # llama-server's choice
QUIET_PATHS = frozenset({"/health", "/v1/health", "/metrics"})  # polled: logged as DEBUG
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"


@dataclass(slots=True)
class RequestRecord:
    """Filled while a request is answered; written by the gate when it is over."""

    status: int = 0  # 0: nothing was sent
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_decoded_tokens: int = 0
    was_abandoned: bool = False  # the client left before the end
    path: str = ""
    received_s: float = 0.0  # Unix time
    elapsed_s: float = -1.0  # until the answer was sent; -1: it is under way
    answer_id: str = ""  # of a completion
    model_name: str = ""  # that it was sent to
    engine_ids: list[int] = field(default_factory=list)  # one for each prompt
    replies: ReplyCounts | None = None  # in the conversation; None where there is none
    history_keys: tuple[bytes, ...] = ()  # of the conversation up to each message
    ends: list[Finished] = field(default_factory=list)  # of the first choice of each prompt

    @property
    def reports(self) -> list[CacheReport]:
        """What became of the prompts, as far as they have ended."""
        return [end.cache for end in self.ends if end.cache is not None]

    def line(self, method: str, path: str, elapsed_s: float) -> str:
        """Return the line for the log."""
        # Quoted, so that a path with a line break cannot forge a line of the log.
        parts = [f"{method} {quote(path)} {self.status or '-'} {elapsed_s * 1e3:.0f} ms"]
        if self.num_prompt_tokens:
            parts.append(
                f"prompt {self.num_prompt_tokens} (cached {self.num_cached_tokens}), "
                f"decoded {self.num_decoded_tokens}"
            )
        if self.reports:
            parts.append(describe_reports(self.reports))
            if self.replies is not None and self.replies.total:
                parts.append(f"{self.replies.exact} of {self.replies.total} replies exact")
            parts.append(self.answer_id)
        if self.was_abandoned:
            parts.append("client left")
        return ", ".join(parts)


class RequestHistory:
    """The records of the last completions, by the id of their answer.

    A ring, not a cache: to look at one does not keep it.
    """

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()  # the latest last

    def add(self, record: RequestRecord) -> None:
        """Keep the record of a request that begins; it is filled while it goes on."""
        self._records[record.answer_id] = record
        while len(self._records) > self._max_requests:
            self._records.popitem(last=False)

    def find_record(self, answer_id: str) -> RequestRecord | None:
        """Return a record; None if there is none, or none any more."""
        return self._records.get(answer_id)

    def latest(self) -> list[RequestRecord]:
        """Return all records, the latest first."""
        return list(reversed(self._records.values()))


def describe_reports(reports: list[CacheReport]) -> str:
    """Return a part of a line of the log; without words of the prompt."""
    sources = "+".join(dict.fromkeys(report.source for report in reports))
    reasons = "+".join(dict.fromkeys(report.reason for report in reports))
    num_bytes = sum(report.num_restored_bytes for report in reports)
    restore_ms = sum(report.restore_ms for report in reports)
    return (
        f"from {sources} ({num_bytes / 1e6:.1f} MB in {restore_ms:.1f} ms), "
        f"prefilled {sum(report.num_prefilled for report in reports)} "
        f"in {sum(report.num_prefill_chunks for report in reports)} chunks, "
        f"{sum(report.num_prefilled_twice for report in reports)} of them again, "
        f"kept {sum(report.num_checkpoints for report in reports)} checkpoints, {reasons}"
    )


def describe_words(record: RequestRecord) -> str:
    """Return where the prompts of a request part from what is known, with words of both sides."""
    return "; ".join(
        f"parts at token {found.pos}: {found.prompt_excerpt!r} instead of {found.known_excerpt!r}"
        for found in (report.divergence for report in record.reports)
        if found is not None
    )


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request that a scope belongs to."""
    record = scope.setdefault(KEY, RequestRecord())
    assert isinstance(record, RequestRecord), "the key is ours"
    return record


def name_record(scope: Scope, answer_id: str) -> RequestRecord:
    """Return the record of a request that will be answered by a completion with that id."""
    record = record_of(scope)
    record.answer_id = answer_id
    return record


class RequestGate:
    """ASGI middleware around the whole app."""

    def __init__(
        self, app: ASGIApp, api_keys: Iterable[str], check_ready: Callable[[], None]
    ) -> None:
        self._app = app
        self._check_ready = check_ready  # raises Unavailable while no request can be answered
        self._keys = tuple(key.encode() for key in api_keys)

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
            if scope["path"] != "/":
                self._check_ready()
            await self._app(as_get(scope), receive, send)
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


def as_get(scope: Scope) -> Scope:
    """Return a scope as the routes know it: a HEAD is a GET, whose body the HTTP server leaves out.

    Nothing of ours streams an answer to a GET, so its length is known.
    """
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _noting(send: Send, record: RequestRecord) -> Send:
    """Return a `send` that notes the status of the answer."""

    async def send_and_note(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
        await send(message)

    return send_and_note

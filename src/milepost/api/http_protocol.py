"""HTTP/1 as uvicorn speaks it, with what its clients need besides.

- Wishes to go on in another protocol are not heard, which HTTP allows: Java's HTTP client sends
  `Upgrade: h2c` with every first request, and httptools ends a request there, before its body.
- Answers to HTTP/1.0, which knows no chunks, end with their connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

INVALID = "Invalid HTTP request received."  # uvicorn's words
UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _wants_upgrade = False  # the request whose head was read last; it is read again without that

    def data_received(self, data: bytes) -> None:
        """Take what the client has sent."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as wish:
                if self.parser.get_method() == b"CONNECT":  # it has no other meaning
                    self._refuse()
                    return
                data = self._write_plain_head() + data[wish.args[0] :]
                self.parser = make_parser(self)
            except httptools.HttpParserError:
                self._refuse()
                return

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the request is to be read again."""
        self._wants_upgrade = self.parser.should_upgrade()
        if self._wants_upgrade:
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            # uvicorn names the class, so it cannot be told to make another one.
            self.cycle.__class__ = UnchunkedCycle

    def on_message_complete(self) -> None:
        """Take note of the end of a request."""
        if not self._wants_upgrade:
            super().on_message_complete()

    def _write_plain_head(self) -> bytes:
        """Return the head of the request that was read last, without its wish."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(t for t in tokens if t.lower() not in UPGRADE_HEADERS)
            if name not in UPGRADE_HEADERS:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self) -> None:
        self.logger.warning(INVALID)
        self.send_400_response(INVALID)


def make_parser(protocol: HttpProtocol) -> httptools.HttpRequestParser:
    """Return a parser as uvicorn makes it; one that has met a wish may not read on."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class UnchunkedCycle(RequestResponseCycle):
    """An answer that ends with its connection, unless it says how long it is."""

    _is_endless = False  # nothing but the end of the connection tells where the answer ends

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer."""
        fields: Any = message
        if fields["type"] == "http.response.start":
            names = {name.lower() for name, _ in fields.get("headers", ())}
            self._is_endless = b"content-length" not in names
            self.chunked_encoding = False if self._is_endless else None
        elif self._is_endless:
            self.expected_content_length = len(fields.get("body", b""))
        await super().send(message)

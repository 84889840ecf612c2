"""Fetches media by http(s) URL, and reaches nothing that the client could not reach itself.

A request may come from a web page, or be words of a stranger that a model repeats; the server
stands where both may not go: beside the router, other services of the machine, and the cloud's
metadata. So a name is resolved once, every address it has must be public, and the connection goes
to one of those; a redirect is checked like the first URL. Blocks; runs on a thread.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from milepost.errors import InvalidRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

Place = tuple[socket.AddressFamily, Any]  # where a socket is connected to

MAX_REDIRECTS = 3
READ_BYTES = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
DEFAULT_PORTS = {"http": 80, "https": 443}
WAY_OUT = "send the file itself as a data URL"


def is_public(address: Address) -> bool:
    """Say whether an address is one of the open Internet, whichever way it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFetcher:
    """Fetches files from addresses that are allowed."""

    max_bytes: int
    timeout_s: float  # of one file, redirects included
    is_allowed: Callable[[Address], bool] = is_public

    def fetch(self, url: str, where: str) -> bytes:
        """Return what a URL holds.

        Raises InvalidRequest, which begins with `where`, for a URL that must not be fetched, and
        for everything that goes wrong on the way.
        """
        deadline_s = time.monotonic() + self.timeout_s
        for _ in range(MAX_REDIRECTS + 1):
            parts = _split(url, where)
            try:
                with self._connect(parts, deadline_s, where) as connection:
                    found = self._get(connection, parts, where)
                    if time.monotonic() >= deadline_s:  # what was read is cut off
                        raise TimeoutError
            except (OSError, http.client.HTTPException) as error:
                late = time.monotonic() >= deadline_s
                reason = f"it took over {self.timeout_s:g} s" if late else _reason(error)
                raise _refusal(where, f"cannot be fetched: {reason}") from error
            if isinstance(found, bytes):
                return found
            url = _redirected(url, found, where)
        raise _refusal(where, f"has more than {MAX_REDIRECTS} redirects")

    @contextlib.contextmanager
    def _connect(
        self, parts: SplitResult, deadline_s: float, where: str
    ) -> Iterator[http.client.HTTPConnection]:
        """Yield a connection that breaks at the deadline, however slowly the server answers."""
        host = parts.hostname or ""
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        places = self._resolve(host, port, where)
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(_connect_to_one(places, deadline_s))
            streams = [stream]
            watch = threading.Timer(deadline_s - time.monotonic(), _break_off, (streams,))
            watch.daemon = True
            watch.start()
            stack.callback(watch.cancel)
            if parts.scheme == "https":
                context = ssl.create_default_context()
                stream = stack.enter_context(
                    context.wrap_socket(stream, server_hostname=host, do_handshake_on_connect=False)
                )
                streams.append(stream)
                stream.do_handshake()
            connection = http.client.HTTPConnection(host, port)
            connection.sock = stream  # so that it does not resolve the name once more
            yield connection

    def _resolve(self, host: str, port: int, where: str) -> list[Place]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise _refusal(where, f"cannot be fetched: there is no host {host[:100]!r}") from error
        for *_, address in found:
            if not self.is_allowed(ipaddress.ip_address(str(address[0]))):
                raise _refusal(where, f"is not fetched: {host[:100]!r} is no public address")
        return [(family, address) for family, *_, address in found]

    def _get(
        self, connection: http.client.HTTPConnection, parts: SplitResult, where: str
    ) -> bytes | str:
        """Return the body, or where a redirect goes."""
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        connection.putrequest("GET", target, skip_host=True)
        for name, value in (
            ("Host", host),
            ("Accept", "image/*, audio/*"),
            ("Connection", "close"),
        ):
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as response:
            location = response.getheader("Location")
            if response.status in REDIRECTS and location is not None:
                return location
            if response.status != 200:
                raise _refusal(where, f"cannot be fetched: the answer has status {response.status}")
            return self._read(response, where)

    def _read(self, response: http.client.HTTPResponse, where: str) -> bytes:
        data = bytearray()
        declared = response.length or 0
        while declared <= self.max_bytes and (block := response.read1(READ_BYTES)):
            data += block
            declared = max(declared, len(data))
        if declared > self.max_bytes:
            raise _refusal(
                where,
                f"is larger than {self.max_bytes >> 20} MiB, the limit of --media-max-mib",
            )
        if response.length:
            raise _refusal(where, "cannot be fetched: the answer breaks off")
        return bytes(data)


def _split(url: str, where: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises for what is no number
    except ValueError as error:
        raise _refusal(where, "is no valid URL") from error
    if parts.scheme not in DEFAULT_PORTS:
        raise _refusal(where, f"redirects to a URL of scheme {parts.scheme[:20]!r}")
    if not parts.hostname or parts.username is not None or not url.isprintable() or " " in url:
        raise _refusal(where, "is no URL of a host without user name and white space")
    if not url.isascii():
        raise _refusal(where, "is a URL with other characters than ASCII; escape them")
    return parts


def _redirected(url: str, location: str, where: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise _refusal(where, f"redirects to {location[:100]!r}, which is no valid URL") from error


def _connect_to_one(places: list[Place], deadline_s: float) -> socket.socket:
    """Return a connection to the first of the places that takes one."""
    for family, address in places:
        stream = socket.socket(family, socket.SOCK_STREAM)
        try:
            stream.settimeout(max(deadline_s - time.monotonic(), 0.001))
            stream.connect(address)
        except OSError:
            stream.close()
            if (family, address) == places[-1]:
                raise
        else:
            return stream
    raise OSError("the host has no address")


def _break_off(streams: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):  # it was closed just now
        socket.socket.shutdown(streams[-1], socket.SHUT_RDWR)  # of an SSL stream too, as it is


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:100] or type(error).__name__


def _refusal(where: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{where} {what}; {WAY_OUT}", param="messages")

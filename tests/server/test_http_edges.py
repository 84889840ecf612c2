"""HTTP as clients really write it, byte by byte, to a real server."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest
from tests.processes import RunningServer

TIMEOUT_S = 30.0
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
UPGRADE = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


@pytest.fixture
def connection(server: RunningServer) -> Iterator[socket.socket]:
    """A connection to the server."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connected:
        yield connected


def request(
    *headers: str,
    body: bytes | None = json.dumps(CHAT).encode(),
    line: str = "POST /v1/chat/completions HTTP/1.1",
) -> bytes:
    """Return a request; without headers of a body's length if there is none."""
    lines = [line, "Host: localhost", *headers]
    if body is not None and not any("chunked" in header for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def read_answer(connection: socket.socket, method: str = "POST") -> tuple[HTTPResponse, bytes]:
    """Return the next answer on a connection, and its body."""
    response = HTTPResponse(connection, method=method)
    response.begin()
    return response, response.read()


def read_chat(connection: socket.socket) -> dict[str, Any]:
    """Return an answer that must be a chat."""
    response, body = read_answer(connection)
    assert response.status == 200, body
    answer: dict[str, Any] = json.loads(body)
    assert answer["usage"]["completion_tokens"] == 3
    return answer


def read_to_end(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_wish_for_another_protocol_is_not_heard(connection: socket.socket) -> None:
    connection.sendall(request(*UPGRADE))
    read_chat(connection)
    connection.sendall(request())  # the connection lives on
    read_chat(connection)
    connection.sendall(request(*UPGRADE))
    read_chat(connection)


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0", "foo, bar"])
def test_no_protocol_is_gone_over_to(connection: socket.socket, protocol: str) -> None:
    connection.sendall(request("Connection: keep-alive, Upgrade", f"Upgrade: {protocol}"))
    read_chat(connection)
    connection.sendall(
        request("Upgrade: websocket", "Connection: upgrade", body=None, line="GET /health HTTP/1.1")
    )
    assert read_answer(connection)[0].status == 200


def test_a_body_comes_in_any_parts_after_a_wish(connection: socket.socket) -> None:
    data = request(*UPGRADE)
    for cut in (10, 70, data.index(b"\r\n\r\n") + 2, data.index(b"\r\n\r\n") + 4, len(data) - 5):
        connection.sendall(data[:cut])
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(data[cut:])
        read_chat(connection)


def test_a_chunked_body_comes_after_a_wish(connection: socket.socket) -> None:
    text = json.dumps(CHAT).encode()
    body = b"5\r\n" + text[:5] + b"\r\n%x\r\n" % len(text[5:]) + text[5:] + b"\r\n0\r\n\r\n"
    connection.sendall(request(*UPGRADE, "Transfer-Encoding: chunked", body=body))
    read_chat(connection)
    connection.sendall(request(body=json.dumps(CHAT).encode()))
    read_chat(connection)


def test_requests_with_wishes_may_wait_in_line(connection: socket.socket) -> None:
    connection.sendall(request() + request(*UPGRADE) + request(*UPGRADE) + request())
    answers = HTTPStream(connection)
    for _ in range(4):
        assert answers.next_status() == 200


def test_a_client_that_wants_to_close_is_heard(connection: socket.socket) -> None:
    connection.sendall(request("Connection: close, Upgrade", "Upgrade: h2c"))
    answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in answer


def test_a_tunnel_is_refused(connection: socket.socket) -> None:
    connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
    assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")


def test_http_1_0_gets_no_chunks(connection: socket.socket) -> None:
    body = json.dumps({**CHAT, "stream": True}).encode()
    connection.sendall(request(body=body, line="POST /v1/chat/completions HTTP/1.0"))
    head, text = read_to_end(connection).split(b"\r\n\r\n", 1)
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n")


def test_http_1_0_gets_plain_answers(connection: socket.socket) -> None:
    connection.sendall(request(line="POST /v1/chat/completions HTTP/1.0"))
    head, text = read_to_end(connection).split(b"\r\n\r\n", 1)
    assert f"content-length: {len(text)}".encode() in head
    assert json.loads(text)["usage"]["completion_tokens"] == 3


class HTTPStream:
    """Answers on one connection that may come in one piece."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")

    def next_status(self) -> int:
        """Return the status of the next answer, whose body is passed over."""
        status = int(self._file.readline().split()[1])
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self._file.read(length)
        return status


GETS = ("/", "/health", "/v1/models", "/models", "/props", "/slots", "/cache", "/requests")


@pytest.mark.parametrize("path", GETS)
def test_a_head_is_a_get_without_its_body(connection: socket.socket, path: str) -> None:
    connection.sendall(request(body=None, line=f"HEAD {path} HTTP/1.1"))
    head, nothing = read_answer(connection, "HEAD")
    connection.sendall(request(body=None, line=f"GET {path} HTTP/1.1"))
    answer, text = read_answer(connection, "GET")
    assert (head.status, nothing) == (answer.status, b"") == (200, b"")
    assert head.headers["content-type"] == answer.headers["content-type"]
    assert int(head.headers["content-length"]) == pytest.approx(len(text), abs=20)  # times differ


def test_a_head_of_nothing_is_refused(connection: socket.socket) -> None:
    for path, status in (("/nothing", 404), ("/v1/chat/completions", 405)):
        connection.sendall(request(body=None, line=f"HEAD {path} HTTP/1.1"))
        assert read_answer(connection, "HEAD")[0].status == status


def test_a_compressed_body(connection: socket.socket) -> None:
    body = gzip.compress(json.dumps(CHAT).encode())
    connection.sendall(request("Content-Encoding: gzip", body=body))
    read_chat(connection)
    connection.sendall(request("Content-Encoding: br", body=body))
    response, _ = read_answer(connection)
    assert response.status == 415
    connection.sendall(request())  # the connection lives on
    read_chat(connection)


def test_a_body_with_a_byte_order_mark(connection: socket.socket) -> None:
    connection.sendall(request(body=b"\xef\xbb\xbf" + json.dumps(CHAT).encode()))
    read_chat(connection)


def test_half_a_surrogate_pair(connection: socket.socket) -> None:
    chat = {**CHAT, "messages": [{"role": "user", "content": "cut \ud83d"}]}
    connection.sendall(request(body=json.dumps(chat).encode()))
    read_chat(connection)

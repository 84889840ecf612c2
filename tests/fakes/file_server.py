"""An HTTP server on a loopback address that gives away files as it is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Files:
    """What the server answers by path; `asked` are the paths that it was asked for."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    stalls: threading.Event = field(default_factory=threading.Event)  # /stalls waits for it
    asked: list[str] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        files = self.server.files
        files.asked.append(self.path)
        if self.path in files.redirects:
            self.send_response(302)
            self.send_header("Location", files.redirects[self.path])
            self.end_headers()
        elif self.path == "/stalls":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            files.stalls.wait()
        elif self.path == "/endless":
            self._send_endlessly()
        elif self.path == "/breaks-off":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab")
        elif self.path in files.bodies:
            self.send_response(200)
            self.send_header("Content-Length", str(len(files.bodies[self.path])))
            self.end_headers()
            self.wfile.write(files.bodies[self.path])
        else:
            self.send_error(404)

    def _send_endlessly(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):  # until the client has had enough
            while True:
                self.wfile.write(bytes(1 << 16))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: Files, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.files = files


@contextlib.contextmanager
def file_server(host: str = "127.0.0.1") -> Iterator[Files]:
    """Serve files until the block is left."""
    files = Files()
    server = _Server(files, host)
    files.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield files
    finally:
        files.stalls.set()
        server.shutdown()
        server.server_close()
        thread.join()

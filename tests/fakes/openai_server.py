"""A small OpenAI-compatible server that answers as it is told, on a loopback port."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """What the server does; `bodies` are the chat requests that it got."""

    usage: dict[str, Any] = field(default_factory=lambda: {"prompt_tokens": 10})
    status: int = 200
    message: str = "no"
    breaks_off: bool = False  # in the middle of the answer
    prefill_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    has_body: threading.Event = field(default_factory=threading.Event)
    was_left: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "fake-1"}]})
        else:
            self._answer(404, {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        script = self.server.script
        body = self.rfile.read(int(self.headers["Content-Length"]))
        script.bodies.append(json.loads(body))
        script.has_body.set()
        if script.status != 200:
            self._answer(script.status, {"error": {"message": script.message}})
            return
        self.send_response(200)
        self.end_headers()
        try:
            self._stream(script)
        except OSError:
            script.was_left.set()

    def _stream(self, script: Script) -> None:
        self._event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        deadline_s = time.monotonic() + script.prefill_s
        while time.monotonic() < deadline_s:
            self.wfile.write(b":\n\n")  # finds out when the client has left
            time.sleep(0.01)
        self._event(choices=[{"index": 0, "delta": {"content": "Hi"}}])
        if script.breaks_off:
            return
        self._event(choices=[], usage=script.usage)
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, **fields: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(fields).encode() + b"\n\n")

    def _answer(self, status: int, fields: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(fields).encode())

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    script: Script


@contextlib.contextmanager
def running_openai_server(script: Script) -> Iterator[str]:
    """Serve until the block is left; yield the URL."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.script = script
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

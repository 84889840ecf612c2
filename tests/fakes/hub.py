"""A small hub on loopback: the routes of the model hub that a download uses, over real HTTP.

Serves model info and files with ETag, commit and Range; can cut a connection in the middle of a
file, refuse access, and count what it was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

COMMIT = "c0ffee" + "0" * 34
RANGE = re.compile(r"bytes=(\d+)-")


@dataclass
class Repository:
    """What the hub has under one name."""

    files: dict[str, bytes] = field(default_factory=dict)
    is_gated: bool = False
    token: str = ""  # needed for access, when not empty


class FakeHub:
    """Use as a context manager; `url` is the endpoint."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        self.repositories = repositories
        self.cuts: dict[str, int] = {}  # file -> bytes after which its next transfer is cut
        self.status = 0  # answered to everything, when not 0
        self.requests: list[tuple[str, str, str]] = []  # method, path, Range
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def transfers(self, name: str) -> list[str]:
        """Return the Range headers of all GET requests for a file, "" where there was none."""
        return [
            range_header
            for method, path, range_header in self.requests
            if method == "GET" and path.endswith(f"/resolve/main/{name}")
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    @property
    def _hub(self) -> FakeHub:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self._hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if self._hub.status:
            self._send(self._hub.status, b"{}", {})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/main)?", path):
            self._answer_info(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", path):
            self._answer_file(match[1], match[2])
        else:
            self._refuse(404, "EntryNotFound")

    def _answer_info(self, name: str) -> None:
        repository = self._permitted(name)
        if repository is None:
            return
        siblings = [{"rfilename": file} for file in sorted(repository.files)]
        info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _answer_file(self, name: str, file: str) -> None:
        repository = self._permitted(name)
        if repository is None:
            return
        if repository.is_gated:
            self._refuse(403, "GatedRepo")
            return
        content = repository.files.get(file)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        match = RANGE.match(self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if match:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if match else 200, content[start:], headers, cut_at=self._cut(file))

    def _cut(self, file: str) -> int | None:
        return self._hub.cuts.pop(file, None) if self.command == "GET" else None

    def _permitted(self, name: str) -> Repository | None:
        repository = self._hub.repositories.get(name)
        if repository is None:
            self._refuse(404, "RepoNotFound")
            return None
        if repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            self._refuse(401, "RepoNotFound")  # the hub does not tell private from missing
            return None
        return repository

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut_at: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut_at is None else body[:cut_at])
        if cut_at is not None:
            self.close_connection = True

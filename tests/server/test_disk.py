"""A server that is told to end writes its conversations first, and the next one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.processes import RunningServer, running_server

TEXT = "The quick brown fox jumps over the lazy dog. " * 40
STOP_TIMEOUT_S = 30.0


def complete(server: RunningServer, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 2, "temperature": 0}
    answer: dict[str, Any] = server.http.post("/completion", json=body).json()
    return answer


@pytest.mark.parametrize("kind", ["hybrid", "full"])
def test_a_restart_loses_nothing(
    tiny_models: dict[models.Kind, Path], kind: models.Kind, tmp_path: Path
) -> None:
    flags = ["-c", "4096", "-np", "2", "-t", "1", "--cache-on-disk", "--cache-dir", str(tmp_path)]
    with running_server(tiny_models[kind], flags, tmp_path / "first.log") as server:
        first = complete(server, TEXT)
        assert not list(tmp_path.rglob("blobs/*/*"))
        server.process.terminate()
        assert server.process.wait(STOP_TIMEOUT_S) == 0
    written = sorted(tmp_path.rglob("blobs/*/*"))
    assert written

    with running_server(tiny_models[kind], flags, tmp_path / "second.log") as server:
        second = complete(server, TEXT + first["content"] + " And so on.")
        listed = server.http.get("/requests").json()["requests"][0]
        disk = server.http.get("/cache").json()["disk"]

    assert listed["source"] == "disk"
    assert second["timings"]["cache_n"] >= first["timings"]["prompt_n"]
    assert disk["blobs"] >= len(written)
    assert disk["read_bytes"] > 0

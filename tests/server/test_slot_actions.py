"""llama-server's slot actions through a real server, and what a client can get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import models
from tests.processes import RunningServer, running_server
from tests.soak import soak_beside

TEXT = "The quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture(params=soak_beside(models.KINDS, ("full", "hybrid")))
def kind(request: pytest.FixtureRequest) -> models.Kind:
    kind: models.Kind = request.param
    return kind


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    folder = tmp_path / "slots"
    folder.mkdir()
    return ["-c", "4096", "-np", "2", "-t", "1", "--slot-save-path", str(folder)]


@pytest.fixture(scope="module")
def server(
    tiny_models: dict[models.Kind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("slots")
    flags = ["-c", "2048", "-np", "2", "-t", "1", "--slot-save-path", str(folder)]
    with running_server(tiny_models["hybrid"], flags, folder / "server.log") as server:
        yield server


def complete(server: RunningServer, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 2, "temperature": 0}
    answer: dict[str, Any] = server.http.post("/completion", json=body).json()
    return answer


def act(server: RunningServer, action: str, slot: int, name: str = "one.bin") -> dict[str, Any]:
    response = server.http.post(f"/slots/{slot}?action={action}", json={"filename": name})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def find_slot(server: RunningServer) -> int:
    """Return the slot that holds something."""
    slots = server.http.get("/slots").json()
    return next(int(slot["id"]) for slot in slots if slot["n_tokens"])


def test_a_saved_slot_goes_on_after_a_restart(
    tiny_models: dict[models.Kind, Path], kind: models.Kind, flags: list[str], tmp_path: Path
) -> None:
    with running_server(tiny_models[kind], flags, tmp_path / "first.log") as server:
        first = complete(server, TEXT)
        saved = act(server, "save", find_slot(server))
    with running_server(tiny_models[kind], flags, tmp_path / "second.log") as server:
        restored = act(server, "restore", 1)
        second = complete(server, TEXT + first["content"] + " And so on.")

    assert restored["n_restored"] == restored["n_reusable"] == saved["n_saved"]
    assert restored["n_read"] < saved["n_written"]
    assert second["timings"]["cache_n"] >= first["timings"]["prompt_n"]


def test_an_erased_slot_is_empty(server: RunningServer) -> None:
    complete(server, TEXT)
    slot = find_slot(server)
    assert act(server, "erase", slot)["n_erased"] > 0
    assert server.http.get("/slots").json()[slot]["n_tokens"] == 0


@pytest.mark.parametrize(
    ("url", "body", "words"),
    [
        ("/slots/0?action=save", {"filename": "../one.bin"}, "plain name"),
        ("/slots/0?action=save", {"filename": "/etc/one"}, "plain name"),
        ("/slots/0?action=save", {}, "plain name"),
        ("/slots/0?action=restore", {"filename": "missing.bin"}, "no file missing.bin"),
        ("/slots/7?action=restore", {"filename": "one.bin"}, "no slot 7"),
        ("/slots/one?action=erase", {}, "must be a number"),
        ("/slots/0?action=copy", {}, "save, restore or erase"),
    ],
)
def test_what_cannot_be_done_is_said(
    server: RunningServer, url: str, body: dict[str, str], words: str
) -> None:
    response = server.http.post(url, json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_a_damaged_file_is_refused(server: RunningServer, tmp_path_factory: Any) -> None:
    complete(server, TEXT)
    slot = find_slot(server)
    act(server, "save", slot, "damaged.bin")
    (path,) = tmp_path_factory.getbasetemp().rglob("damaged.bin")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    response = server.http.post(f"/slots/{slot}?action=restore", json={"filename": "damaged.bin"})
    assert response.status_code == 400
    assert "damaged" in response.json()["error"]["message"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_folder_the_actions_are_refused(
    tiny_models: dict[models.Kind, Path], tmp_path: Path
) -> None:
    flags = ["-c", "512", "-np", "1", "-t", "1"]
    with running_server(tiny_models["full"], flags, tmp_path / "server.log") as server:
        response = server.http.post("/slots/0?action=save", json={"filename": "a"})
    assert response.status_code == 501
    assert "--slot-save-path" in response.json()["error"]["message"]

"""A folder of each version of the format, kept for ever: it still reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.disk_cache import FINGERPRINT, TIMEOUT_S, open_store

SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.mark.parametrize("index_is_kept", [True, False], ids=["whole", "without-index"])
def test_a_folder_of_version_1_reads(tmp_path: Path, index_is_kept: bool) -> None:
    shutil.copytree(SAMPLES / "disk-format-1", tmp_path / "cache")
    if not index_is_kept:  # the files alone are enough
        (tmp_path / "cache" / FINGERPRINT.folder_name / "index.sqlite").unlink()
    store = open_store(tmp_path / "cache")
    forest = store.load()
    blobs = {bytes(store.read(blob.id)): blob for blob in forest.blobs}
    histories = {
        data: forest.runs.history(blob.run, blob.end).tolist() for data, blob in blobs.items()
    }
    assert histories == {
        b"cells of 20 tokens": list(range(100, 120)),
        b"cells of a branch": [*range(100, 112), -7, 8, 9],
        b"state after 12 tokens": list(range(100, 112)),
    }
    assert blobs[b"cells of a branch"].start == 12
    assert blobs[b"state after 12 tokens"].name == "system_end"
    assert [pin.pos for pin in forest.pins] == [12] * index_is_kept
    store.close(TIMEOUT_S)


@pytest.mark.parametrize("index_is_kept", [True, False], ids=["whole", "without-index"])
def test_a_folder_of_version_2_reads(tmp_path: Path, index_is_kept: bool) -> None:
    shutil.copytree(SAMPLES / "disk-format-2", tmp_path / "cache")
    if not index_is_kept:
        (tmp_path / "cache" / FINGERPRINT.folder_name / "index.sqlite").unlink()
    store = open_store(tmp_path / "cache")
    found = {blob.kind: (blob.end, bytes(store.read(blob.id))) for blob in store.load().blobs}
    assert found == {
        "segment": (20, b"cells of 20 tokens"),
        "checkpoint": (20, b"state after 20 tokens"),
        "logits": (20, b"logits behind 20 tokens"),
    }
    store.close(TIMEOUT_S)

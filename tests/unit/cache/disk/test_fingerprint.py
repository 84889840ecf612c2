"""A fingerprint changes with whatever changes bytes, and with nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.disk_cache import FINGERPRINT

from milepost.cache.disk.fingerprint import (
    HEAD_BYTES,
    NUM_SAMPLES,
    SAMPLE_BYTES,
    FileIdentity,
    LoraIdentity,
    identify_file,
    sample_offsets,
)

OTHER_FILE = FileIdentity(1000, "aa", "cc")


def test_the_folder_name_of_a_fingerprint_never_changes() -> None:
    assert FINGERPRINT.folder_name == "d885d9d1117100dd5e8c1515d7ea6816"
    assert FINGERPRINT.key.hex() == FINGERPRINT.folder_name


def test_the_text_is_canonical() -> None:
    text = FINGERPRINT.encode_json()
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")) == text
    assert '"flash_attention":true' in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_files", (OTHER_FILE,)),
        ("model_files", (*FINGERPRINT.model_files, OTHER_FILE)),
        ("type_k", "q8_0"),
        ("type_v", "q8_0"),
        ("flash_attention", False),
        ("full_window", True),
        ("memory_kind", "full"),
        ("rope", dataclasses.replace(FINGERPRINT.rope, yarn_beta_slow=2.0)),
        ("loras", (LoraIdentity(OTHER_FILE, 1.0),)),
        ("library_build", "b2"),
        ("state_layout_version", 2),
    ],
)
def test_each_field_gives_another_folder(name: str, value: Any) -> None:
    changed = dataclasses.replace(FINGERPRINT, **{name: value})
    assert changed.folder_name != FINGERPRINT.folder_name


def test_every_field_is_tried() -> None:
    assert {field.name for field in dataclasses.fields(FINGERPRINT)} == {
        *("model_files", "type_k", "type_v", "flash_attention", "full_window", "memory_kind"),
        *("rope", "loras", "library_build", "state_layout_version"),
    }


@pytest.mark.parametrize("num_bytes", [0, 1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + 5_000_000])
def test_a_change_in_a_sampled_place_is_found(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    os.truncate(path, num_bytes)
    identity = identify_file(path)
    assert identity.num_bytes == num_bytes
    assert identify_file(path) == identity
    for offset in {0, num_bytes // 2, num_bytes - 1} if num_bytes else set():
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"x")
        if offset < HEAD_BYTES or offset == num_bytes - 1:
            assert identify_file(path) != identity
        os.truncate(path, 0)
        os.truncate(path, num_bytes)


def test_name_and_date_do_not_count(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"model")
    second.write_bytes(b"model")
    os.utime(second, (0, 0))
    assert identify_file(first) == identify_file(second)


def test_samples_reach_from_the_head_to_the_last_byte() -> None:
    num_bytes = 20 << 30
    offsets = sample_offsets(num_bytes)
    assert len(offsets) == NUM_SAMPLES
    assert offsets[0] == HEAD_BYTES
    assert offsets[-1] + SAMPLE_BYTES == num_bytes

"""What is said about files that are no models."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.cli.model_file import check_model_file, model_name_of
from milepost.errors import ModelFileError


def header(*, version: int = 3, num_tensors: int = 1) -> bytes:
    return (
        b"GGUF"
        + version.to_bytes(4, "little")
        + num_tensors.to_bytes(8, "little")
        + (1).to_bytes(8, "little")
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "is not a GGUF file"),
        (b"GG", "is not a GGUF file"),
        (b"GGUF\3\0\0\0", "is cut short after 8 bytes"),
        (header(version=1), "has version 1 of the GGUF format"),
        (header(version=9), "has version 9 of the GGUF format"),
        (header(version=3 << 24), "for big-endian machines"),
        (header(num_tensors=0), "holds no weights"),
    ],
)
def test_a_foreign_file_gets_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelFileError, match=sentence) as caught:
        check_model_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no file"):
        check_model_file(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        check_model_file(tmp_path)


def test_a_good_head_passes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header())

    check_model_file(path)


def test_a_split_model_needs_its_first_part_and_all_others(tmp_path: Path) -> None:
    first = tmp_path / "big-00001-of-00002.gguf"
    second = tmp_path / "big-00002-of-00002.gguf"
    first.write_bytes(header())
    with pytest.raises(ModelFileError, match="part big-00002-of-00002.gguf is missing"):
        check_model_file(first)

    second.write_bytes(header())
    check_model_file(first)
    with pytest.raises(ModelFileError, match="give big-00001-of-00002.gguf"):
        check_model_file(second)


def test_names_of_models() -> None:
    assert model_name_of(Path("/m/SmolLM2-135M.Q4_1.gguf")) == "SmolLM2-135M.Q4_1"
    assert model_name_of(Path("big-00001-of-00002.gguf")) == "big"

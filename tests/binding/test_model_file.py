"""A file that cannot be served is refused with one sentence; nothing crashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import models

from milepost import libllama
from milepost.errors import ModelFileError


def refusal(library: libllama.Library, path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        libllama.Model(library, path, libllama.ModelParams())
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.fixture
def model_bytes(tiny_models: dict[models.Kind, Path]) -> bytes:
    return tiny_models["full"].read_bytes()


def test_missing(library: libllama.Library, tmp_path: Path) -> None:
    assert "does not exist" in refusal(library, tmp_path / "missing.gguf")


def test_folder(library: libllama.Library, tmp_path: Path) -> None:
    assert "is a folder" in refusal(library, tmp_path)


def test_below_a_file(library: libllama.Library, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be read: Not a directory" in refusal(library, tmp_path / "file" / "m.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(library: libllama.Library, tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.touch(mode=0o000)
    assert "cannot be read: Permission denied" in refusal(library, path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file", b"ggml" * 10])
def test_foreign(library: libllama.Library, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(content)
    assert f"is not a GGUF file: it begins with {content[:4]!r}" in refusal(library, path)


@pytest.mark.parametrize("num_bytes", [4, 8, 20, 100, 1000, 5000])
def test_truncated_in_the_header(
    library: libllama.Library, tmp_path: Path, model_bytes: bytes, num_bytes: int
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(model_bytes[:num_bytes])
    assert "cannot be loaded: " in refusal(library, path)


@pytest.mark.parametrize("part", [0.3, 0.7, 0.999])
def test_truncated_in_the_data(
    library: libllama.Library, tmp_path: Path, model_bytes: bytes, part: float
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(model_bytes[: int(len(model_bytes) * part)])
    assert "not within the file bounds" in refusal(library, path)


def test_garbage_behind_the_magic(library: libllama.Library, tmp_path: Path) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)) * 20)
    assert "cannot be loaded: " in refusal(library, path)


def test_a_path_that_is_not_utf8(
    library: libllama.Library, tmp_path: Path, model_bytes: bytes
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff-model.gguf"))
    path.write_bytes(model_bytes)
    with libllama.Model(library, path, libllama.ModelParams(vocab_only=True)) as model:
        assert model.vocab.num_tokens == len(models.vocabulary())


def test_an_exception_of_the_progress_callback_ends_the_load(
    library: libllama.Library, tiny_models: dict[models.Kind, Path]
) -> None:
    def give_up(fraction: float) -> None:
        raise ConnectionError(f"at {fraction >= 0}")

    with pytest.raises(ConnectionError, match="at True"):
        libllama.Model(library, tiny_models["full"], libllama.ModelParams(), give_up)


def test_progress_ends_at_one(
    library: libllama.Library, tiny_models: dict[models.Kind, Path]
) -> None:
    fractions: list[float] = []
    params = libllama.ModelParams()
    with libllama.Model(library, tiny_models["hybrid"], params, fractions.append):
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0


def test_what_is_known_of_a_model(
    library: libllama.Library, tiny_models: dict[models.Kind, Path]
) -> None:
    found = {}
    for kind, path in tiny_models.items():
        with libllama.Model(library, path, libllama.ModelParams()) as model:
            found[kind] = (model.is_hybrid, model.is_recurrent, model.num_window_tokens > 0)
            assert model.can_generate
            assert model.num_embd == models.Shape().embd
            assert model.num_layers == models.Shape().layers
            assert model.num_context_train_tokens == models.Shape().context
            assert model.metadata("general.name") == f"milepost tiny {kind}"
            assert model.metadata("tokenizer.chat_template") == models.DEFAULT_TEMPLATE
            assert model.metadata("no.such.key") is None
            assert "general.architecture" in model.metadata_keys()
    assert found == {
        "full": (False, False, False),
        "window": (False, False, True),
        "recurrent": (False, True, False),
        "hybrid": (True, False, False),
    }

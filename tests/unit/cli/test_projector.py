"""Which projector is loaded, and what is said of folders and files that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import models
from tests.projectors import write_projector

from milepost.cli.serve import resolve_settings
from milepost.config import EngineSettings, MediaInputSettings, ModelSource, Settings
from milepost.errors import ConfigurationError, ModelFileError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a projector."""
    path = tmp_path_factory.mktemp("models")
    models.write_model("window", path / "model.gguf")
    write_projector("gemma3", path / "mmproj.gguf")
    return path


def resolve(folder: Path, **engine: object) -> str:
    """Return the projector that is loaded."""
    settings = Settings(engine=EngineSettings(**engine))  # type: ignore[arg-type]
    resolved = resolve_settings(settings, ModelSource(model=str(folder / "model.gguf")))
    return resolved.engine.mmproj


def test_without_a_flag_none_is_loaded(folder: Path) -> None:
    assert resolve(folder) == ""


def test_the_one_that_is_named_is_loaded_unless_none_is_wanted(folder: Path) -> None:
    path = str(folder / "mmproj.gguf")
    assert resolve(folder, mmproj=path) == path
    assert resolve(folder, mmproj=path, mmproj_auto=False) == ""


@pytest.mark.parametrize(
    ("name", "said"), [("missing.gguf", "there is no file"), ("text.gguf", "is not a GGUF file")]
)
def test_a_file_that_is_no_projector_is_named(folder: Path, name: str, said: str) -> None:
    (folder / "text.gguf").write_text("hello")
    with pytest.raises(ModelFileError, match=f"{name} {said}|{said} .*{name}"):
        resolve(folder, mmproj=str(folder / name))


def test_a_folder_for_media_has_to_be_there(folder: Path) -> None:
    settings = Settings(media=MediaInputSettings(media_path=str(folder / "none")))
    with pytest.raises(ConfigurationError, match=r"--media-path .*none is no folder"):
        resolve_settings(settings, ModelSource(model=str(folder / "model.gguf")))

"""The real library, and loaded tiny models of every memory kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import models

from milepost import libllama

LoadModel = Callable[[models.Kind], libllama.Model]


@pytest.fixture(scope="session")
def library() -> libllama.Library:
    return libllama.open_library()


@pytest.fixture(scope="session")
def load_model(
    library: libllama.Library, tiny_models: dict[models.Kind, Path]
) -> Iterator[LoadModel]:
    """Return a function that loads the tiny model of a kind, once."""
    loaded: dict[models.Kind, libllama.Model] = {}
    with contextlib.ExitStack() as stack:

        def load(kind: models.Kind) -> libllama.Model:
            if kind not in loaded:
                model = libllama.Model(library, tiny_models[kind], libllama.ModelParams())
                loaded[kind] = stack.enter_context(model)
            return loaded[kind]

        yield load


@pytest.fixture(scope="session")
def vocab(load_model: LoadModel) -> libllama.Vocab:
    return load_model("full").vocab

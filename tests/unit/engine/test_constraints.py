"""A vocabulary that llguidance cannot use fails the requests that need it, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.requests import make_generate

from milepost.engine.constraints import ConstraintMaker
from milepost.errors import NotSupported


@dataclass
class UnreadableVocab:
    """One whose pieces cannot be had."""

    num_tokens: int = 3
    eog_tokens: frozenset[int] = frozenset()
    control_tokens: frozenset[int] = frozenset()

    def read_all_token_bytes(self) -> list[bytes]:
        raise ValueError("too many tokens")


@dataclass
class UnreadableModel:
    vocab: UnreadableVocab = field(default_factory=UnreadableVocab)


def test_a_vocabulary_that_cannot_be_used_is_told_each_time() -> None:
    model: Any = UnreadableModel()
    maker = ConstraintMaker(model)
    message = make_generate(1, constraint='start: "a"')
    for _ in range(2):
        with pytest.raises(NotSupported, match=r"cannot be used for grammars \(too many tokens\)"):
            maker.make(message)
    maker.close()

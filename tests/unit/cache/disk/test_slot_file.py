"""A slot file is the user's: whatever it holds, it is a sequence or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from milepost.cache.disk.format import _FIELDS, HEADER_BYTES, _digest
from milepost.cache.disk.slot_file import read_slot_file, write_slot_file
from milepost.errors import StoredStateLost

FINGERPRINT = b"f" * 16
TOKENS = np.arange(5, dtype=np.int32)
START, END = 5, 6  # the fields of a header


def write(path: Path) -> None:
    write_slot_file(path, TOKENS, b"payload", FINGERPRINT, 1.8e9)


def test_a_sequence_comes_back(tmp_path: Path) -> None:
    write(tmp_path / "one")
    tokens, payload = read_slot_file(tmp_path / "one", FINGERPRINT)
    assert tokens.tolist() == TOKENS.tolist()
    assert payload.tobytes() == b"payload"


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (6, 5)])
def test_an_empty_history_is_refused(tmp_path: Path, start: int, end: int) -> None:
    """Whoever makes such a file can make its checksums too."""
    path = tmp_path / "one"
    write(path)
    data = path.read_bytes()
    fields = list(_FIELDS.unpack(data[: _FIELDS.size]))
    fields[START], fields[END] = start, end
    fields[-2] = _digest(TOKENS[:end].tobytes())
    header = _FIELDS.pack(*fields)
    history = data[HEADER_BYTES:][: 4 * end]
    path.write_bytes(header + _digest(header) + history + b"payload")
    with pytest.raises(StoredStateLost, match=f"from {start} to {end}"):
        read_slot_file(path, FINGERPRINT)

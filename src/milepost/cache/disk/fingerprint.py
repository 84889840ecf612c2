"""Everything that changes the bytes of a stored state, and the name of the folder it gives.

States of two fingerprints are never mixed. What does not change bytes (slots, batch, threads, the
size of the context) is not part of it, so that such a change keeps the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

FINGERPRINT_FILE = "fingerprint.json"
KEY_BYTES = 16
# The metadata of a GGUF file, tokenizer included, is at its start: 12 MiB for 250,000 tokens.
HEAD_BYTES = 16 << 20
# Evenly over the rest: a file of the same size and metadata (another training, another
# quantisation of the same layout) differs in nearly every block. 4 MiB in all.
NUM_SAMPLES = 256
SAMPLE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A model file, told from others without reading all of it; its name and date do not count."""

    num_bytes: int
    head: str  # SHA-256 of its first 16 MiB, in hexadecimal
    samples: str  # SHA-256 of 256 blocks of 16 KiB


@dataclass(frozen=True, slots=True)
class LoraIdentity:
    """An adapter that is applied to the model."""

    file: FileIdentity
    scale: float


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How positions become angles: they are part of the stored keys."""

    scaling: str
    freq_base: float
    freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that changes bytes, as plain values."""

    model_files: tuple[FileIdentity, ...]  # in the order of a split model
    type_k: str
    type_v: str
    flash_attention: bool  # as found, never "auto": without it, values are stored transposed
    full_window: bool  # whether sliding-window layers keep all cells
    memory_kind: str  # as probed, with how states are taken apart
    rope: RopeSettings
    loras: tuple[LoraIdentity, ...]
    library_build: str
    state_layout_version: int  # of the bytes that the binding makes of a state

    @property
    def key(self) -> bytes:
        """16 bytes that stand for it in the files."""
        text = self.encode_json().encode()
        return hashlib.sha256(text, usedforsecurity=False).digest()[:KEY_BYTES]

    @property
    def folder_name(self) -> str:
        """The name of its folder: the key in hexadecimal."""
        return self.key.hex()

    def encode_json(self) -> str:
        """Return the canonical text: sorted keys, no spaces, the shortest form of each number."""
        return json.dumps(
            dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False
        )


def identify_file(path: Path) -> FileIdentity:
    """Return the identity of a file; reads at most 20 MiB of it.

    Raises:
        OSError: it cannot be read.
    """
    head, samples = hashlib.sha256(usedforsecurity=False), hashlib.sha256(usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        head.update(_read_at(file.fileno(), 0, HEAD_BYTES))
        for offset in sample_offsets(num_bytes):
            samples.update(_read_at(file.fileno(), offset, SAMPLE_BYTES))
    return FileIdentity(num_bytes, head.hexdigest(), samples.hexdigest())


def sample_offsets(num_bytes: int) -> list[int]:
    """Return where a file is sampled: evenly, its last bytes included; none in a short file."""
    span = num_bytes - HEAD_BYTES - SAMPLE_BYTES
    if span <= 0:
        return [HEAD_BYTES] if num_bytes > HEAD_BYTES else []
    return [HEAD_BYTES + span * index // (NUM_SAMPLES - 1) for index in range(NUM_SAMPLES)]


def _read_at(descriptor: int, offset: int, num_bytes: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    pieces = []
    while num_bytes > 0 and (piece := os.read(descriptor, num_bytes)):
        pieces.append(piece)
        num_bytes -= len(piece)
    return b"".join(pieces)

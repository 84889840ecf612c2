"""Images and audio: what libmtmd makes of them for a language model.

A projector turns one image or piece of audio into parts of a prompt: text tokens that mark its
begin and end, and embeddings that stand in place of tokens. How many they are, and where they
stand, depends on the size of the content alone, so that a prompt can be laid out without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from milepost.arrays import EmbeddingRows, Positions
from milepost.errors import ConfigurationError, InvalidRequest, LibraryMismatch
from milepost.kinds import FlashAttention, MediaKind
from milepost.libllama.context import FLASH_ATTN
from milepost.libllama.loader import Library
from milepost.libllama.model import Model, check_model_file
from milepost.libllama.native_log import NativeLog

EXPECTED_DEFAULTS = {  # of mtmd_context_params, as for the structs in loader.py
    "use_gpu": True,
    "print_timings": True,
    "n_threads": 4,
    "flash_attn_type": -1,
    "warmup": True,
    "image_min_tokens": -1,
    "image_max_tokens": -1,
    "batch_max_tokens": 1024,
}
MARKER = b"<__media__>"  # in the text that is tokenised; the default of the library
TEXT, IMAGE, AUDIO = 0, 1, 2  # enum mtmd_input_chunk_type
NUM_SECTIONS = 4  # of an M-RoPE position: time, row, column, and one more
MAX_SIDE = 1 << 16  # pixels; libmtmd computes areas in 32 bits
MIN_SAMPLES = 2  # fewer end the process inside libmtmd
MAX_SAMPLES = 1 << 30


@dataclass(frozen=True, slots=True)
class ProjectorParams:
    """How to load a projector."""

    use_gpu: bool
    num_threads: int
    flash_attn: FlashAttention = "auto"
    image_min_tokens: int = -1  # -1: as the projector says
    image_max_tokens: int = -1


@dataclass(frozen=True, slots=True)
class MediaSize:
    """All that the layout of a media item depends on."""

    kind: MediaKind
    width: int = 0  # pixels
    height: int = 0
    num_samples: int = 0

    @property
    def num_bytes(self) -> int:
        """Of its content: rows of 8-bit RGB, or mono float32 samples."""
        return 3 * self.width * self.height if self.kind == "image" else 4 * self.num_samples


@dataclass(frozen=True, slots=True)
class MarkerTokens:
    """Tokens that mark the beginning or the end of a media item."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingBlock:
    """Embeddings in place of tokens; `offsets + steps * pos` are their positions after `pos`."""

    num_tokens: int
    num_positions: int  # by which what follows is further on
    offsets: Positions
    steps: Positions  # the same, of 0 and 1: most positions count from the beginning of the block
    is_causal: bool  # False: every token sees the whole block, which is computed at once

    def positions(self, pos: int) -> Positions:
        """Return the positions of the embeddings when the block begins at `pos`."""
        found: Positions = self.offsets + self.steps * pos
        return found


LayoutPart = MarkerTokens | EmbeddingBlock


class Projector:
    """Owns an `mtmd_context`; close it before its model.

    `lay_out` may be called by two threads at once, and while one of them is in `encode`, which is
    for one thread. The reason of an error may then be that of the other thread's.
    """

    def __init__(self, model: Model, path: Path, params: ProjectorParams) -> None:
        """Raises ModelFileError or ConfigurationError when the file cannot be used."""
        check_model_file(path)
        library = model.library
        self._ffi, self._lib = library.ffi, library.lib
        check_media_abi(library)
        self._log = NativeLog(library.ffi)
        self._lib.mtmd_log_set(self._log.callback, self._ffi.NULL)
        self._marker = self._ffi.new("char[]", MARKER)
        library.warn_of_errors()
        self._pointer = self._lib.mtmd_init_from_file(
            os.fsencode(path), model.pointer, self._native_params(params)
        )
        if self._pointer == self._ffi.NULL:
            reason = self._log.take_errors() or library.take_errors() or "libmtmd gave no reason"
            raise ConfigurationError(f"{path} cannot be used as a projector (--mmproj): {reason}")
        self.has_vision = bool(self._lib.mtmd_support_vision(self._pointer))
        self.has_audio = bool(self._lib.mtmd_support_audio(self._pointer))
        self.audio_sample_rate = max(int(self._lib.mtmd_get_audio_sample_rate(self._pointer)), 0)
        self.uses_mrope = bool(self._lib.mtmd_decode_use_mrope(self._pointer))
        self.num_embd = model.num_embd_input

    def close(self) -> None:
        """Free the projector."""
        if self._pointer != self._ffi.NULL:
            self._lib.mtmd_free(self._pointer)
            self._pointer = self._ffi.NULL

    def lay_out(self, size: MediaSize) -> tuple[LayoutPart, ...]:
        """Return the parts of a media item, without its content.

        Raises InvalidRequest when the projector cannot take it.
        """
        self._check_size(size)
        with self._tokenize(size, self._ffi.NULL) as chunks:
            return tuple(self._describe(chunk) for chunk in chunks)

    def encode(self, size: MediaSize, data: bytes) -> list[EmbeddingRows]:
        """Return the embeddings of each EmbeddingBlock.

        Raises InvalidRequest when the content is not of that size, or cannot be encoded.
        """
        self._check_size(size)
        if len(data) != size.num_bytes:
            raise InvalidRequest(
                f"the {describe_size(size)} has {len(data)} bytes instead of {size.num_bytes}"
            )
        with self._tokenize(size, self._ffi.from_buffer(data)) as chunks:
            wanted = [c for c in chunks if self._lib.mtmd_input_chunk_get_type(c) != TEXT]
            return [self._encode(chunk, size) for chunk in wanted]

    def _encode(self, chunk: Any, size: MediaSize) -> EmbeddingRows:
        if self._lib.mtmd_encode_chunk(self._pointer, chunk):
            reason = self._log.take_errors() or "libmtmd gave no reason"
            raise InvalidRequest(f"the {describe_size(size)} cannot be encoded: {reason}")
        shape = (int(self._lib.mtmd_input_chunk_get_n_tokens(chunk)), self.num_embd)
        pointer = self._lib.mtmd_get_output_embd(self._pointer)
        values = np.frombuffer(self._ffi.buffer(pointer, 4 * shape[0] * shape[1]), np.float32)
        return values.reshape(shape).copy()

    def _check_size(self, size: MediaSize) -> None:
        is_image = size.kind == "image"
        if not (self.has_vision if is_image else self.has_audio):
            raise InvalidRequest(
                f"the loaded projector takes no {size.kind}; give one that does with --mmproj"
            )
        if is_image and not (0 < size.width < MAX_SIDE and 0 < size.height < MAX_SIDE):
            raise InvalidRequest(
                f"the image has {size.width}x{size.height} pixels; each side must have 1 to "
                f"{MAX_SIDE - 1}"
            )
        if not is_image and not MIN_SAMPLES <= size.num_samples <= MAX_SAMPLES:
            raise InvalidRequest(
                f"the audio has {size.num_samples} samples; it must have at least {MIN_SAMPLES} "
                f"and at most {MAX_SAMPLES}"
            )

    @contextmanager
    def _tokenize(self, size: MediaSize, data: Any) -> Iterator[list[Any]]:
        """Give the chunks of a media item; without `data` they can be measured, but not encoded."""
        ffi, lib = self._ffi, self._lib
        if size.kind == "image":
            pixels = ffi.cast("unsigned char *", data)
            bitmap = lib.mtmd_bitmap_init(size.width, size.height, pixels)
        else:
            samples = ffi.cast("float *", data)
            bitmap = lib.mtmd_bitmap_init_from_audio(size.num_samples, samples)
        chunks = lib.mtmd_input_chunks_init()
        try:
            text = ffi.new("mtmd_input_text *", (self._marker, len(MARKER), False, True))
            bitmaps = ffi.new("const mtmd_bitmap *[1]", [bitmap])
            if lib.mtmd_tokenize(self._pointer, chunks, text, bitmaps, 1):
                reason = self._log.take_errors() or "libmtmd gave no reason"
                raise InvalidRequest(f"the {describe_size(size)} cannot be used: {reason}")
            num_chunks = lib.mtmd_input_chunks_size(chunks)
            yield [lib.mtmd_input_chunks_get(chunks, i) for i in range(num_chunks)]
        finally:
            lib.mtmd_input_chunks_free(chunks)
            lib.mtmd_bitmap_free(bitmap)

    def _describe(self, chunk: Any) -> LayoutPart:
        lib = self._lib
        num_tokens = int(lib.mtmd_input_chunk_get_n_tokens(chunk))
        if lib.mtmd_input_chunk_get_type(chunk) == TEXT:
            count = self._ffi.new("size_t *")
            tokens = lib.mtmd_input_chunk_get_tokens_text(chunk, count)
            return MarkerTokens(tuple(int(tokens[i]) for i in range(count[0])))
        offsets = self._positions(chunk, num_tokens, 0)
        return EmbeddingBlock(
            num_tokens=num_tokens,
            num_positions=int(lib.mtmd_input_chunk_get_n_pos(chunk)),
            offsets=offsets,
            steps=self._positions(chunk, num_tokens, 1) - offsets,
            is_causal=not lib.mtmd_decode_use_non_causal(self._pointer, chunk),
        )

    def _positions(self, chunk: Any, num_tokens: int, pos: int) -> Positions:
        """Return the positions of a chunk that begins at `pos`."""
        if not self.uses_mrope:
            return np.arange(pos, pos + num_tokens, dtype=np.int32)[np.newaxis]
        image = self._lib.mtmd_input_chunk_get_tokens_image(chunk)
        if image == self._ffi.NULL:  # audio goes on in time only
            return np.tile(np.arange(pos, pos + num_tokens, dtype=np.int32), (NUM_SECTIONS, 1))
        found = np.empty((num_tokens, NUM_SECTIONS), np.int32)  # time, column, row, rest
        pointer = self._ffi.cast("struct mtmd_decoder_pos *", self._ffi.from_buffer(found))
        self._lib.mtmd_helper_image_get_decoder_pos(image, pos, pointer)
        return found.T[[0, 2, 1, 3]]  # the order in a batch: the row before the column

    def _native_params(self, params: ProjectorParams) -> Any:
        native = self._lib.mtmd_context_params_default()
        native.use_gpu = params.use_gpu
        native.n_threads = params.num_threads
        native.flash_attn_type = FLASH_ATTN[params.flash_attn]
        native.image_min_tokens = params.image_min_tokens
        native.image_max_tokens = params.image_max_tokens
        native.media_marker = self._marker
        native.print_timings = False
        native.warmup = params.use_gpu  # on a CPU it only costs time
        return native


def check_media_abi(library: Library) -> None:
    """Raise LibraryMismatch unless the library has libmtmd of the declared build."""
    try:
        params = library.lib.mtmd_context_params_default()
    except AttributeError as error:
        raise LibraryMismatch(
            f"{library.name} has no libmtmd, which --mmproj needs: {error}"
        ) from error
    for field, value in EXPECTED_DEFAULTS.items():
        found = getattr(params, field)
        if found != value:
            raise LibraryMismatch(
                f"{library.name} has not the libmtmd that milepost declares (b11549): the default "
                f"of {field} reads {found!r} instead of {value!r}"
            )


def describe_size(size: MediaSize) -> str:
    """Return what a media item is, for people."""
    if size.kind == "image":
        return f"image of {size.width}x{size.height} pixels"
    return f"audio of {size.num_samples} samples"


def count_tokens(parts: Sequence[LayoutPart]) -> int:
    """Return how many tokens of a prompt the parts take."""
    return sum(p.num_tokens if isinstance(p, EmbeddingBlock) else len(p.tokens) for p in parts)

"""A loaded model file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from milepost.errors import ConfigurationError, ModelFileError
from milepost.kinds import LoadMode, SplitMode
from milepost.libllama.loader import Library
from milepost.libllama.vocab import Vocab

GGUF_MAGIC = b"GGUF"
# enum llama_split_mode
SPLIT_MODES: dict[SplitMode, int] = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
LOAD_MODES: dict[LoadMode, int] = {  # enum llama_load_mode
    "auto": -1,
    "none": 0,
    "mmap": 1,
    "mlock": 2,
    "mmap+mlock": 3,
    "dio": 4,
}
META_BUFFER_BYTES = 1 << 10  # longer values are asked for again


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How to load a model; meanings are those of `llama_model_params`."""

    n_gpu_layers: int = -1  # -1: as many as fit
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: Sequence[float] = ()
    load_mode: LoadMode = "auto"
    check_tensors: bool = False
    vocab_only: bool = False


class Model:
    """Owns a `llama_model`; close it, or use it as a context manager."""

    def __init__(
        self,
        library: Library,
        path: Path,
        params: ModelParams,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load a model file; `on_progress` gets the loaded fraction, 0 to 1, many times.

        Raises ModelFileError when the file is missing, truncated or not a model. An exception of
        `on_progress` ends the load and is raised here.
        """
        check_model_file(path)
        self.library = library
        self._lib = library.lib
        self._keep_alive: list[Any] = []
        reporter = ProgressReporter(on_progress)
        native = self._native_params(params, reporter)
        library.warn_of_errors()
        self.pointer = self._lib.llama_model_load_from_file(os.fsencode(path), native)
        self._keep_alive.clear()
        if reporter.error is not None:
            self.close()
            raise reporter.error
        if self.pointer == library.ffi.NULL:
            reason = library.take_errors() or "llama.cpp gave no reason"
            raise ModelFileError(f"{path} cannot be loaded: {reason}")
        self.vocab = Vocab(library, self._lib.llama_model_get_vocab(self.pointer))

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; contexts made from it must be closed before."""
        if self.pointer != self.library.ffi.NULL:
            self._lib.llama_model_free(self.pointer)
            self.pointer = self.library.ffi.NULL

    @property
    def description(self) -> str:
        """Architecture, size and quantisation, e.g. "llama 135M Q4_1"."""
        buffer = self.library.ffi.new("char[]", META_BUFFER_BYTES)
        self._lib.llama_model_desc(self.pointer, buffer, META_BUFFER_BYTES)
        return self.library.text(buffer)

    @property
    def size_bytes(self) -> int:
        """Size of all tensors."""
        return int(self._lib.llama_model_size(self.pointer))

    @property
    def num_params(self) -> int:
        """Number of parameters."""
        return int(self._lib.llama_model_n_params(self.pointer))

    @property
    def num_context_train_tokens(self) -> int:
        """Context length that the model was trained with."""
        return int(self._lib.llama_model_n_ctx_train(self.pointer))

    @property
    def num_embd(self) -> int:
        """Width of the embeddings."""
        return int(self._lib.llama_model_n_embd(self.pointer))

    @property
    def num_embd_input(self) -> int:
        """Width of what may be put in place of a token: more than `num_embd` for some models."""
        return int(self._lib.llama_model_n_embd_inp(self.pointer))

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return int(self._lib.llama_model_n_layer(self.pointer))

    @property
    def num_window_tokens(self) -> int:
        """Length of the sliding window, 0 where there is none."""
        return int(self._lib.llama_model_n_swa(self.pointer))

    @property
    def is_recurrent(self) -> bool:
        """Whether all layers are recurrent."""
        return bool(self._lib.llama_model_is_recurrent(self.pointer))

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers are recurrent and others attend."""
        return bool(self._lib.llama_model_is_hybrid(self.pointer))

    @property
    def can_generate(self) -> bool:
        """Whether the model continues a text: it has a decoder, needs no encoder, no diffusion."""
        lib, pointer = self._lib, self.pointer
        return bool(
            lib.llama_model_has_decoder(pointer)
            and not lib.llama_model_has_encoder(pointer)
            and not lib.llama_model_is_diffusion(pointer)
        )

    def metadata(self, key: str) -> str | None:
        """Return a metadata value of the file as text, or None where it has no such key."""
        return self._read_text(self._lib.llama_model_meta_val_str, key.encode())

    def metadata_keys(self) -> list[str]:
        """Return the names of all metadata fields, arrays left out by llama.cpp included."""
        count = self._lib.llama_model_meta_count(self.pointer)
        read = self._lib.llama_model_meta_key_by_index
        return [self._read_text(read, i) or "" for i in range(count)]

    def _read_text(self, read: Any, key: Any) -> str | None:
        ffi, size = self.library.ffi, META_BUFFER_BYTES
        buffer = ffi.new("char[]", size)
        length = read(self.pointer, key, buffer, size)
        if length < 0:
            return None
        if length >= size:  # like snprintf: the length that would have been written
            size = length + 1
            buffer = ffi.new("char[]", size)
            read(self.pointer, key, buffer, size)
        return bytes(ffi.buffer(buffer, length)[:]).decode(errors="replace")

    def _native_params(self, params: ModelParams, reporter: ProgressReporter) -> Any:
        ffi = self.library.ffi
        native = self._lib.llama_model_default_params()
        native.n_gpu_layers = params.n_gpu_layers
        native.split_mode = SPLIT_MODES[params.split_mode]
        native.main_gpu = params.main_gpu
        native.load_mode = LOAD_MODES[params.load_mode]
        native.check_tensors = params.check_tensors
        native.vocab_only = params.vocab_only
        if params.tensor_split:
            num_devices = self._lib.llama_max_devices()
            if len(params.tensor_split) > num_devices:
                raise ConfigurationError(
                    f"--tensor-split names {len(params.tensor_split)} devices, "
                    f"but this build of llama.cpp knows at most {num_devices}"
                )
            split = ffi.new("float[]", num_devices)
            split[0 : len(params.tensor_split)] = list(params.tensor_split)
            native.tensor_split = split
            self._keep_alive.append(split)
        callback = ffi.callback("bool (float, void *)", reporter.report)
        native.progress_callback = callback
        self._keep_alive.append(callback)
        return native


class ProgressReporter:
    """llama.cpp's progress callback: hands the fraction on, and keeps an exception for later.

    An exception cannot pass through C; it stops the load instead, and `Model` raises it.
    """

    def __init__(self, on_progress: Callable[[float], None] | None) -> None:
        self._on_progress = on_progress
        self.error: BaseException | None = None

    def report(self, fraction: float, _: Any) -> bool:
        """Take the loaded fraction; False stops the load."""
        if self._on_progress is not None and self.error is None:
            try:
                self._on_progress(fraction)
            except BaseException as error:
                self.error = error
        return self.error is None


def check_model_file(path: Path) -> None:
    """Raise ModelFileError unless the path is a readable file that begins like a GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise ModelFileError(
            f"{path} does not exist; give the path of a GGUF file with -m"
        ) from None
    except IsADirectoryError:
        raise ModelFileError(
            f"{path} is a folder; give the path of a GGUF file in it with -m"
        ) from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ModelFileError(
            f"{path} is not a GGUF file: it begins with {magic!r} instead of {GGUF_MAGIC!r}"
        )

"""Find llama.cpp's library, open it, and make sure that it is the build declared here.

The library is the extension file inside the pinned `xllamacpp` wheel, which exports the whole C
API; the Python module around it is never imported. `MILEPOST_LIBLLAMA` names another file.
A wrong struct layout corrupts memory without a message, so nothing is called before the check.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from milepost.errors import LibraryMismatch
from milepost.libllama.native_log import NativeLog, read_text

PINNED_XLLAMACPP = "2026.10.11549"
OVERRIDE_VARIABLE = "MILEPOST_LIBLLAMA"

# Defaults of the declared build that sit at both ends of the structs and around every field that
# moved between builds: with another layout at least one of them reads differently.
EXPECTED_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
}
EXPECTED_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
    "load_mtp": False,
}

DEVICE_TYPE_CPU = 0


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the library can compute on."""

    name: str
    description: str
    is_cpu: bool


class Library:
    """The opened library. `ffi` and `lib` are for this package only."""

    def __init__(self, ffi: FFI, lib: Any, name: str) -> None:
        self.ffi = ffi
        self.lib = lib
        self.name = name  # e.g. "xllamacpp 2026.10.11549"
        self._log = NativeLog(ffi)
        lib.llama_log_set(self._log.callback, ffi.NULL)
        lib.llama_backend_init()

    def take_errors(self) -> str:
        """Return the most telling of the errors that llama.cpp logged since the last call.

        Empty when nothing was logged.
        """
        return self._log.take_errors()

    def warn_of_errors(self) -> None:
        """Log the errors that nobody took: they did not make a call fail. Forget them."""
        self._log.warn_of_errors()

    def devices(self) -> list[Device]:
        """Return the devices that the library knows, in its order."""
        lib, found = self.lib, []
        for i in range(lib.ggml_backend_dev_count()):
            device = lib.ggml_backend_dev_get(i)
            found.append(
                Device(
                    name=self.text(lib.ggml_backend_dev_name(device)),
                    description=self.text(lib.ggml_backend_dev_description(device)),
                    is_cpu=lib.ggml_backend_dev_type(device) == DEVICE_TYPE_CPU,
                )
            )
        return found

    def text(self, pointer: Any) -> str:
        """Return a C string; empty for a null pointer."""
        return read_text(self.ffi, pointer)


def open_library() -> Library:
    """Open the pinned library, or the one that MILEPOST_LIBLLAMA names.

    Raises LibraryMismatch when there is none, or when it is not the declared build.
    """
    override = os.environ.get(OVERRIDE_VARIABLE, "")
    if override:
        path, name = Path(override), f"{override} (from {OVERRIDE_VARIABLE})"
    else:
        path, name = find_pinned_library()
    return load_library(path, name)


@functools.cache  # llama.cpp has one log callback per process, which must never be freed
def load_library(path: Path, name: str) -> Library:
    """Open a library file once, check it and route its log. Raises LibraryMismatch."""
    ffi = FFI()
    ffi.cdef(Path(__file__).with_name("declarations.h").read_text(encoding="utf-8"))
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise LibraryMismatch(f"cannot open the native library {name}: {error}") from error
    check_abi(lib, name)
    return Library(ffi, lib, name)


def find_pinned_library() -> tuple[Path, str]:
    """Return path and name of the extension file of the installed xllamacpp wheel."""
    try:
        version = importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        raise LibraryMismatch(
            f"xllamacpp is not installed; run: pip install xllamacpp=={PINNED_XLLAMACPP}"
        ) from None
    if version.split("+")[0] != PINNED_XLLAMACPP:  # GPU builds carry a local version label
        raise LibraryMismatch(
            f"xllamacpp {version} is installed, but this milepost is written for the struct "
            f"layouts of {PINNED_XLLAMACPP}; run: pip install xllamacpp=={PINNED_XLLAMACPP}"
        )
    spec = importlib.util.find_spec("xllamacpp")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("xllamacpp*.so")) + sorted(
            Path(folder).glob("xllamacpp*.pyd")
        ):
            return path, f"xllamacpp {version}"
    raise LibraryMismatch(f"xllamacpp {version} has no extension file in {folders}; reinstall it")


def check_abi(lib: Any, name: str) -> None:
    """Raise LibraryMismatch unless the default structs read as the declared build's do."""
    try:
        context_params = lib.llama_context_default_params()
        model_params = lib.llama_model_default_params()
    except AttributeError as error:
        raise LibraryMismatch(f"{name} does not export llama.cpp's C API: {error}") from error
    for params, expected in (
        (context_params, EXPECTED_CONTEXT_DEFAULTS),
        (model_params, EXPECTED_MODEL_DEFAULTS),
    ):
        for field, value in expected.items():
            found = getattr(params, field)
            if found != value:
                raise LibraryMismatch(
                    f"{name} is not the llama.cpp build that milepost declares (b11549): "
                    f"the default of {field} reads {found!r} instead of {value!r}; "
                    f"use xllamacpp=={PINNED_XLLAMACPP}"
                )

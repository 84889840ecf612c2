"""Find llama.cpp's library, open it, and make sure that it is the build declared here.

The library is the extension file inside the pinned `xllamacpp` wheel, which exports the whole C
API; the Python module around it is never imported. `MILEPOST_LIBLLAMA` names another file.
A wrong struct layout corrupts memory without a message, so nothing is called before the check.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import logging
import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from milepost.errors import LibraryMismatch

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

LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
CONTINUED = 5  # ggml's level for "goes on with the line before"
LOG_PREFIX = re.compile(r"^(?:[\w~]+: )+")  # the functions that a line came through
SAYS_ONLY_THAT_IT_FAILED = re.compile(
    r"(error loading model: llama_model_loader: )?failed to (load model|decode|initialize)"
)
NUM_RECENT_ERRORS = 8  # arbitrary; a failed load logs two or three lines
DEVICE_TYPE_CPU = 0

logger = logging.getLogger(__name__)


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
        self._recent_errors: deque[str] = deque(maxlen=NUM_RECENT_ERRORS)
        self._log_callback = ffi.callback("void (int, const char *, void *)", self._on_log)
        self._line = ""
        self._level = logging.DEBUG
        lib.llama_log_set(self._log_callback, ffi.NULL)
        lib.llama_backend_init()

    def take_errors(self) -> str:
        """Return the most telling of the errors that llama.cpp logged since the last call.

        The innermost function knows best and logs first, but says it in its own terms; the ones
        around it add what they were doing, and that it failed. Empty when nothing was logged.
        """
        lines = [LOG_PREFIX.sub("", line) for line in self._recent_errors]
        self._recent_errors.clear()
        telling = [line for line in lines if not SAYS_ONLY_THAT_IT_FAILED.match(line)]
        return (telling or lines or [""])[-1]

    def warn_of_errors(self) -> None:
        """Log the errors that nobody took: they did not make a call fail. Forget them."""
        for line in dict.fromkeys(self._recent_errors):
            logger.warning("%s", line)
        self._recent_errors.clear()

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
        if pointer == self.ffi.NULL:
            return ""
        return bytes(self.ffi.string(pointer)).decode(errors="replace")

    def _on_log(self, level: int, text: Any, _: Any) -> None:
        """Collect pieces into lines, and hand each whole line to Python's logging."""
        if level != CONTINUED:
            self._flush_line()
            self._level = LOG_LEVELS.get(level, logging.DEBUG)
        self._line += self.text(text)
        if self._line.endswith("\n"):
            self._flush_line()

    def _flush_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line:
            return
        if self._level >= logging.ERROR:
            self._recent_errors.append(line)  # they are in the message of the call that fails
        # What llama.cpp calls information (hundreds of lines at load) is detail for our users, and
        # so is what the return code of a decode says: aborted, or out of cells.
        is_warning = self._level == logging.WARNING and not line.startswith("decode: ")
        logger.log(logging.WARNING if is_warning else logging.DEBUG, "%s", line)


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

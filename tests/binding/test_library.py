"""Only the declared build is used, another file of it may be named, and its log is Python's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost import libllama
from milepost.errors import LibraryMismatch
from milepost.libllama.loader import (
    EXPECTED_CONTEXT_DEFAULTS,
    EXPECTED_MODEL_DEFAULTS,
    OVERRIDE_VARIABLE,
    check_abi,
    find_pinned_library,
    load_library,
)

OPEN = """
from milepost.errors import LibraryMismatch
from milepost.libllama import open_library
try:
    print(open_library().name)
except LibraryMismatch as error:
    print("refused:", error)
"""


def open_with(path: Path) -> str:
    """Return what a fresh process says about the library that the variable names."""
    environment = os.environ | {OVERRIDE_VARIABLE: str(path)}
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def with_default(library: libllama.Library, field: str, value: Any) -> SimpleNamespace:
    """Return a library whose default for one field reads differently."""
    context = library.lib.llama_context_default_params()
    model = library.lib.llama_model_default_params()
    setattr(context if field in EXPECTED_CONTEXT_DEFAULTS else model, field, value)
    return SimpleNamespace(
        llama_context_default_params=lambda: context, llama_model_default_params=lambda: model
    )


def test_the_pinned_build_passes(library: libllama.Library) -> None:
    check_abi(library.lib, "the pinned one")
    assert library.name.startswith(f"xllamacpp {libllama.PINNED_XLLAMACPP}")


@pytest.mark.parametrize("field", [*EXPECTED_CONTEXT_DEFAULTS, *EXPECTED_MODEL_DEFAULTS])
def test_a_default_that_reads_differently_is_refused(library: libllama.Library, field: str) -> None:
    expected = {**EXPECTED_CONTEXT_DEFAULTS, **EXPECTED_MODEL_DEFAULTS}[field]
    other = with_default(library, field, (not expected) if expected in (0, 1) else 7)
    with pytest.raises(LibraryMismatch, match=f"the default of {field} reads"):
        check_abi(other, "foreign.so")


def test_a_library_without_the_api_is_refused() -> None:
    with pytest.raises(LibraryMismatch, match=r"foreign\.so does not export llama\.cpp's C API"):
        check_abi(SimpleNamespace(), "foreign.so")


def test_the_variable_may_name_the_same_build() -> None:
    path, _ = find_pinned_library()
    assert open_with(path) == f"{path} (from {OVERRIDE_VARIABLE})"


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    path.write_text("not a library")
    assert open_with(path).startswith(f"refused: cannot open the native library {path}")


def test_a_library_that_is_not_llama_cpp_is_refused() -> None:
    import _cffi_backend

    path = Path(_cffi_backend.__file__)
    assert "does not export llama.cpp's C API" in open_with(path)


def test_a_library_is_opened_once() -> None:
    path, name = find_pinned_library()
    assert load_library(path, name) is load_library(path, name)


def test_the_log_goes_to_python(
    library: libllama.Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    with caplog.at_level(logging.DEBUG, "milepost.libllama.native_log"):
        pointer = library.lib.llama_model_load_from_file(
            bytes(path), library.lib.llama_model_default_params()
        )
    assert pointer == library.ffi.NULL
    assert caplog.messages
    assert not any(line.endswith("\n") or not line for line in caplog.messages)
    assert library.take_errors() == "failed to read header"
    assert library.take_errors() == ""


def test_pieces_of_a_line_are_put_together(
    library: libllama.Library, caplog: pytest.LogCaptureFixture
) -> None:
    report = library.ffi.cast("ggml_log_callback", library._log.callback)
    with caplog.at_level(logging.DEBUG, "milepost.libllama.native_log"):
        for level, text in ((3, b"one "), (5, b"two "), (5, b"three\n"), (1, b"\n"), (2, b"x\n")):
            report(level, library.ffi.new("char[]", text), library.ffi.NULL)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "one two three"),
        (logging.DEBUG, "x"),
    ]


def report(library: libllama.Library, *lines: bytes) -> None:
    """Log errors as llama.cpp does."""
    callback = library.ffi.cast("ggml_log_callback", library._log.callback)
    for line in lines:
        callback(4, library.ffi.new("char[]", line + b"\n"), library.ffi.NULL)


def test_of_several_errors_the_telling_one_is_taken(library: libllama.Library) -> None:
    report(
        library,
        b"llama_model_load: error loading model: tensor 'x' is not within the file bounds",
        b"llama_model_load_from_file_impl: failed to load model",
    )
    assert library.take_errors() == "error loading model: tensor 'x' is not within the file bounds"


def test_errors_that_nobody_takes_are_warnings(
    library: libllama.Library, caplog: pytest.LogCaptureFixture
) -> None:
    report(library, b"something: is odd")
    assert caplog.messages == []
    library.warn_of_errors()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "something: is odd")
    ]
    assert library.take_errors() == ""


def test_devices_name_the_cpu(library: libllama.Library) -> None:
    assert any(device.is_cpu and device.name and device.description for device in library.devices())


def test_what_a_return_code_says_is_detail(
    library: libllama.Library, caplog: pytest.LogCaptureFixture
) -> None:
    callback = library.ffi.cast("ggml_log_callback", library._log.callback)
    with caplog.at_level(logging.DEBUG, "milepost.libllama.native_log"):
        text = library.ffi.new("char[]", b"decode: removing memory module entries\n")
        callback(3, text, library.ffi.NULL)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]

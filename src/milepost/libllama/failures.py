"""Turn llama.cpp's return codes into exceptions."""

from __future__ import annotations

from milepost.errors import ContextFull, DecodeAborted, NativeCallFailed

NO_SLOT = 1
ABORTED = 2


def check_decode(code: int, num_tokens: int, errors: str) -> None:
    """Raise what a non-zero return code of `llama_decode` means.

    Source: the comment on `llama_decode` in llama.h.
    """
    if code == 0:
        return
    if code == NO_SLOT:
        raise ContextFull(f"no free cells in the context for a batch of {num_tokens} tokens")
    if code == ABORTED:
        raise DecodeAborted(f"a batch of {num_tokens} tokens was aborted")
    detail = f": {errors}" if errors else ""
    raise NativeCallFailed(f"llama_decode of {num_tokens} tokens failed with {code}{detail}")

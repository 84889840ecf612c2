"""What a request leaves in the log: one line, with counts where they are known, never its text."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import Scope

KEY = "milepost.record"  # in the ASGI scope


@dataclass(slots=True)
class RequestRecord:
    """Filled while a request is answered; written by the gate when it is over."""

    status: int = 0  # 0: nothing was sent
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_decoded_tokens: int = 0
    was_abandoned: bool = False  # the client left before the end

    def line(self, method: str, path: str, elapsed_s: float) -> str:
        """Return the line for the log."""
        # Quoted, so that a path with a line break cannot forge a line of the log.
        parts = [f"{method} {quote(path)} {self.status or '-'} {elapsed_s * 1e3:.0f} ms"]
        if self.num_prompt_tokens:
            parts.append(
                f"prompt {self.num_prompt_tokens} (cached {self.num_cached_tokens}), "
                f"decoded {self.num_decoded_tokens}"
            )
        if self.was_abandoned:
            parts.append("client left")
        return ", ".join(parts)


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request that a scope belongs to."""
    record = scope.setdefault(KEY, RequestRecord())
    assert isinstance(record, RequestRecord), "the key is ours"
    return record

"""Every exception of milepost, and the HTTP answer each one becomes.

MilepostError
├── InvalidRequest            400  the request is malformed or asks for something impossible
│   ├── ContextExceeded       400  the prompt does not fit into the context
│   ├── TemplateFailed        400  the chat template refused the conversation
│   └── NotSupported          501  the request is valid but asks for something not built yet
├── AuthenticationFailed      401  missing or wrong API key
├── NotFound                  404  no such model, route or object
│   └── MethodNotAllowed      405  the route exists, but not with this method
├── BodyTooLarge              413  the request body is over the limit
├── EncodingNotSupported      415  the request body is compressed in a way that is not read
├── ClientLeft                499  the client went away; nobody reads the answer
├── Unavailable               503  try again: loading or restarting
│   ├── QueueFull             503  as many requests wait as may
│   └── EngineDied            503  the engine process ended while it worked on the request
├── ConfigurationError        500  a flag, file or environment that cannot work; ends the program
│   ├── ModelFileError        500  missing, truncated or foreign model file
│   ├── LibraryMismatch       500  the native library is not the build this code was written for
│   ├── EngineStartFailed     500  the engine process ended before it had loaded its model
│   └── BenchmarkFailed       500  not a trace, an unreachable server, a context that is too small
├── DiskCacheUnusable         500  the folder of the disk cache cannot be used; go on without it
├── StoredStateLost           500  a state on disk is gone or damaged: a miss
├── ProtocolError             500  the engine process and the front end do not understand each other
└── NativeCallFailed          500  a call into libllama failed
    ├── ContextFull           500  no free cells for the batch: make room and try again
    ├── DecodeAborted         500  the abort flag stopped a running batch
    └── StateRefused          500  libllama did not take a saved state
"""

from __future__ import annotations

from typing import ClassVar


class MilepostError(Exception):
    """Base of all exceptions raised on purpose; `str(error)` is fit to be shown to a user."""

    http_status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"  # `error.type` on the wire, llama-server's words


class InvalidRequest(MilepostError):
    """The request is malformed, or asks for something impossible."""

    http_status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextExceeded(InvalidRequest):
    """The prompt does not fit into the context."""

    kind = "exceed_context_size_error"

    def __init__(self, num_prompt_tokens: int, num_context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens, which does not fit into the context of "
            f"{num_context_tokens} tokens; shorten it, or start the server with a larger -c"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.num_context_tokens = num_context_tokens


class TemplateFailed(InvalidRequest):
    """The chat template refused the conversation, or is itself faulty."""


class NotSupported(InvalidRequest):
    """The request is valid, but asks for something this server does not do."""

    http_status = 501
    kind = "not_supported_error"


class AuthenticationFailed(MilepostError):
    """The API key is missing or wrong."""

    http_status = 401
    kind = "authentication_error"


class NotFound(MilepostError):
    """There is no such model, route or object."""

    http_status = 404
    kind = "not_found_error"


class MethodNotAllowed(NotFound):
    """The route exists, but not with this method."""

    http_status = 405
    kind = "invalid_request_error"


class BodyTooLarge(MilepostError):
    """The request body is over the limit."""

    http_status = 413
    kind = "invalid_request_error"


class EncodingNotSupported(MilepostError):
    """The request body is compressed in a way that is not read."""

    http_status = 415
    kind = "invalid_request_error"


class ClientLeft(MilepostError):
    """The client closed the connection before it had its answer; nobody reads this."""

    http_status = 499  # nginx's number for it
    kind = "client_closed_request"


class Unavailable(MilepostError):
    """The server cannot answer now, but may soon."""

    http_status = 503
    kind = "unavailable_error"
    retry_after_s = 2  # arbitrary; an engine restarts in seconds


class QueueFull(Unavailable):
    """As many requests wait for a slot as may."""

    def __init__(self, num_waiting: int, num_slots: int, retry_after_s: int) -> None:
        super().__init__(
            f"the queue is full, with {num_waiting} waiting for {num_slots} slots; try again in "
            f"{retry_after_s} s, send fewer at a time, or start the server with a larger "
            "--max-waiting"
        )
        self.retry_after_s = retry_after_s


class EngineDied(Unavailable):
    """The engine process ended while it worked on the request."""


class ConfigurationError(MilepostError):
    """A flag, a file or the environment cannot work; the program ends with this message."""


class ModelFileError(ConfigurationError):
    """The model file is missing, truncated, or not a model."""


class LibraryMismatch(ConfigurationError):
    """The native library is not the build that this code was written for."""


class EngineStartFailed(ConfigurationError):
    """The engine process ended before it had loaded its model."""


class BenchmarkFailed(ConfigurationError):
    """A benchmark cannot be carried out; the program ends with this message."""


class DiskCacheUnusable(MilepostError):
    """The folder of the disk cache cannot be used; what needs it goes on without."""


class StoredStateLost(MilepostError):
    """What was stored on disk is gone or damaged: a miss, never a failed request."""


class ProtocolError(MilepostError):
    """The engine process and the front end do not understand each other."""


class NativeCallFailed(MilepostError):
    """A call into libllama failed."""


class ContextFull(NativeCallFailed):
    """No free cells were left for the batch; nothing of the failed part was kept."""


class DecodeAborted(NativeCallFailed):
    """The abort flag stopped a running batch; finished micro-batches stay in the context."""


class StateRefused(NativeCallFailed):
    """libllama did not take a saved state; the sequence must be cleared."""

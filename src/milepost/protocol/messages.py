"""What the front end and an engine process say to each other (docs/engine-protocol.md).

Every message is a tagged msgspec Struct: its class name stands under the key `type`. The engine's
first message is `Hello`; the front end answers with `Load`; then come `LoadProgress` and one
`Ready` or `LoadFailed`. After that the front end sends `Generate`, `Cancel` and `GetStatus` as it
likes. A `Generate` is answered by any number of `PromptProgress` and `Delta` and then, for each
choice, one `Finished`; or by one `Failed`, which ends all of its choices. The end of the stream
means that the other side is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from milepost.protocol.sampling import SamplingParams

PROTOCOL_VERSION = 2  # counts up with every change of a message

FinishReason = Literal["eos", "stop_string", "limit", "context_full", "cancelled"]
BoundaryKind = Literal["system_end", "message_end", "last_user", "prompt_end", "breakpoint"]
MemoryKind = Literal["full", "window", "recurrent", "hybrid"]
RestoreKind = Literal["none", "live", "live_state", "ram"]
SlotState = Literal["idle", "waiting", "prefill", "decode"]


# --- front end -> engine -----------------------------------------------------------------


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Load a model; sent once, as the answer to `Hello`."""

    settings: bytes  # milepost.config.EngineSettings as msgpack
    log_settings: bytes  # milepost.config.LogSettings as msgpack


class Boundary(msgspec.Struct, frozen=True, array_like=True):
    """A position in a prompt where later requests may stop sharing it."""

    pos: int  # in tokens of the prompt
    kind: BoundaryKind
    message_index: int = -1  # of the message that ends there
    role: str = ""


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Prefill a prompt and decode `num_choices` continuations of it."""

    request_id: int  # chosen by the front end, unique for the life of the connection
    tokens: bytes  # the prompt, little-endian int32, at least one token
    sampling: SamplingParams
    max_tokens: int = -1  # per choice; -1: until the context is full; 0: prefill only
    stop: tuple[str, ...] = ()  # non-empty strings
    num_choices: int = 1  # choice i samples with seed + i
    num_logprobs: int = -1  # alternatives reported per token; 0: only the sampled one; -1: none
    cache_prompt: bool = True  # False: compute everything, reuse nothing
    wants_progress: bool = False  # send PromptProgress after each prefill chunk
    special: bool = False  # render control tokens in the text
    boundaries: tuple[Boundary, ...] = ()  # in rising order of `pos`; none for a raw prompt
    keeps_prompt_end: bool = False  # later requests may leave the prompt behind "prompt_end"


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Stop a request; answered by `Finished` with reason `cancelled` unless it had ended."""

    request_id: int


class GetStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for a `Status` with the same id."""

    status_id: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """End the process after the current step."""


# --- engine -> front end -----------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """First message of an engine process."""

    protocol_version: int
    pid: int
    library: str  # e.g. "xllamacpp 2026.10.11549"


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Part of the weights that is loaded."""

    fraction: float  # 0 ..= 1


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a loaded model and its context."""

    description: str  # e.g. "llama 135M Q4_1"
    size_bytes: int
    num_params: int
    num_vocab: int
    num_embd: int
    num_layers: int
    num_context_train_tokens: int
    num_context_tokens: int  # shared by all sequences
    num_parallel: int
    num_batch_tokens: int
    num_ubatch_tokens: int
    memory_kind: MemoryKind
    num_window_tokens: int  # 0 unless memory_kind is "window"
    device: str  # e.g. "CPU"
    load_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The model is loaded; requests are taken."""

    model: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The model cannot be loaded; the process ends."""

    kind: str  # class name in milepost.errors
    message: str


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """How far a prefill is."""

    request_id: int
    num_tokens: int  # of the whole prompt
    num_cached: int  # of these, not computed again
    num_processed: int  # cached ones included
    elapsed_ms: float  # since the prefill began


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token with its log probability before the sampling chain, and its rivals."""

    token: int
    piece: bytes  # may be a part of a UTF-8 character
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()  # (token, piece, logprob), most likely first


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """New text of one choice. Never splits a character, never holds a part of a stop string."""

    request_id: int
    choice: int = 0
    text: str  # may be empty while text is held back
    tokens: tuple[int, ...]  # sampled since the last Delta of the choice
    logprobs: tuple[TokenLogprob, ...] = ()


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and durations of one choice, as llama-server reports them."""

    cache_n: int  # prompt tokens that were not computed again
    prompt_n: int  # prompt tokens that were computed
    prompt_ms: float
    predicted_n: int
    predicted_ms: float


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The end of one choice."""

    request_id: int
    choice: int = 0
    reason: FinishReason
    stop_string: str = ""  # the one that was found, with reason "stop_string"
    num_prompt_tokens: int
    timings: Timings


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The end of a request that could not be carried out."""

    request_id: int
    kind: str  # class name in milepost.errors
    message: str


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One parallel slot."""

    slot_id: int
    state: SlotState
    request_id: int  # -1 when idle
    num_tokens: int  # held in the context
    num_prompt_tokens: int  # of the current request, 0 when idle
    num_decoded: int  # of the current request


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the engine was started."""

    num_requests: int = 0
    num_prompt_tokens: int = 0  # received
    num_cached_tokens: int = 0  # of these, not computed again
    num_prefilled_tokens: int = 0  # of these, computed
    num_decoded_tokens: int = 0
    num_decode_calls: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Status(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `GetStatus`."""

    status_id: int
    slots: tuple[SlotStatus, ...]
    num_waiting: int  # requests without a slot
    counters: Counters


ToEngine = Load | Generate | Cancel | GetStatus | Shutdown
FromEngine = (
    Hello | LoadProgress | Ready | LoadFailed | PromptProgress | Delta | Finished | Failed | Status
)
Message = ToEngine | FromEngine

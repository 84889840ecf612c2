"""What the front end and an engine process say to each other (docs/engine-protocol.md).

Every message is a tagged msgspec Struct: its class name stands under the key `type`. The engine's
first message is `Hello`; the front end answers with `Load`; then come `LoadProgress` and one
`Ready` or `LoadFailed`. After that the front end sends `Generate`, `Cancel`, `GetStatus`,
`GetCache`, `ChangeCache` and `CountMedia` as it likes. A `Generate` is answered by any number of
`PromptProgress` and `Delta` and then, for each choice, one `Finished`; or by one `Failed`, which
ends all of its choices. A `NeedMedia` is answered by one `MediaData` for each key. The end of the
stream means that the other side is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from milepost.arrays import Tokens
from milepost.errors import InvalidRequest
from milepost.kinds import BoundaryKind, MediaKind, MemoryKind
from milepost.protocol.cache import CacheChanged, CacheReport, CacheSummary, ChangeCache, GetCache
from milepost.protocol.counters import Counters, DiskSizes, RamSizes
from milepost.protocol.failure import Failure
from milepost.protocol.sampling import SamplingParams

PROTOCOL_VERSION = 10  # counts up with every change of a message

FinishReason = Literal["eos", "stop_string", "limit", "context_full", "cancelled"]
SlotState = Literal["idle", "waiting", "prefill", "decode"]
SlotAction = Literal["save", "restore", "erase"]

TOKEN_DTYPE = np.dtype("<i4")


def encode_tokens(tokens: Sequence[int] | Tokens) -> bytes:
    """Return tokens, a sequence or an array of shape (n,), as messages have them."""
    return np.asarray(tokens, dtype=TOKEN_DTYPE).tobytes()


def decode_tokens(data: bytes) -> Tokens:
    """Return the tokens of a message, int32 of shape (n,), read-only."""
    if len(data) % TOKEN_DTYPE.itemsize:
        raise InvalidRequest(f"{len(data)} bytes are not a whole number of tokens")
    return np.frombuffer(data, TOKEN_DTYPE)


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
    num_media: int = 0  # how many of the prompt's media stand before it


class ReasoningLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many tokens a reply may spend on reasoning, and how that is ended."""

    start: str  # the marker before it; control tokens spelled out
    end: str  # the marker after it
    is_open: bool = False  # the prompt ends inside the reasoning of the reply
    max_tokens: int  # of all reasoning of a reply, markers not counted
    ending: tuple[int, ...]  # tokens that are taken when they are used up


class MediaRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image or a piece of audio, without its bytes, and where it stands in a prompt."""

    pos: int = 0  # index in the text tokens before which it stands; they may be one more
    kind: MediaKind
    key: bytes  # 32 bytes: SHA-256 of its decoded content, kind and size included
    width: int = 0  # of an image, in pixels
    height: int = 0
    num_samples: int = 0  # of audio, at `ModelInfo.audio_sample_rate`


class PromptInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt, and what depends on it and on the template that made it."""

    tokens: bytes  # as `encode_tokens` makes them; empty with media only
    boundaries: tuple[Boundary, ...] = ()  # in rising order of `pos`; none for a raw prompt
    keeps_prompt_end: bool = False  # later requests may leave the prompt after "prompt_end"
    has_new_tools: bool = False  # its system messages were last seen with other tools
    shown_tokens: tuple[int, ...] = ()  # control tokens to render even where `special` is off
    constraint: str = ""  # a grammar for llguidance, instead of `sampling.grammar`
    reasoning: ReasoningLimit | None = None  # None: no limit
    # In rising order of `pos`. What a media item becomes is put between the tokens; `tokens`, and
    # the positions of boundaries, count the text alone.
    media: tuple[MediaRef, ...] = ()

    @property
    def num_tokens(self) -> int:
        """How many tokens the text has."""
        return len(self.tokens) // TOKEN_DTYPE.itemsize


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked for, besides the prompt; the same for every prompt of a request."""

    sampling: SamplingParams
    max_tokens: int = -1  # per choice; -1: until the context is full; 0: prefill only
    stop: tuple[str, ...] = ()  # non-empty strings
    num_choices: int = 1  # choice i samples with seed + i
    num_logprobs: int = -1  # alternatives reported per token; 0: only the sampled one; -1: none
    cache_prompt: bool = True  # False: compute everything, reuse nothing
    wants_progress: bool = False  # send PromptProgress after each prefill chunk
    special: bool = False  # render control tokens in the text


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Prefill a prompt and decode `params.num_choices` continuations of it."""

    request_id: int  # chosen by the front end, unique for the life of the connection
    prompt: PromptInput
    params: GenerationParams


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Stop a request; answered by `Finished` with reason `cancelled` unless it had ended."""

    request_id: int


class GetStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for a `Status` with the same id."""

    status_id: int


class ChangeSlot(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Write what a slot holds to a file, fill it from one, or empty it, when it is idle.

    Answered by a `SlotChanged` with the same id.
    """

    query_id: int
    slot_id: int
    action: SlotAction
    path: str = ""  # of the file


class MediaData(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The content that a `NeedMedia` asked for."""

    key: bytes
    # Rows of RGB pixels, 8 bits each; or mono samples, little-endian float32. Empty: it is gone.
    data: bytes


class CountMedia(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for a `MediaCounts` with the same id."""

    query_id: int
    media: tuple[MediaRef, ...]  # their `pos` and `key` do not matter


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
    cache_folder: str = ""  # of this model, on disk; empty: nothing is kept there
    has_vision: bool = False  # a projector for images is loaded
    has_audio: bool = False
    audio_sample_rate: int = 0  # in Hz, that `MediaData` must have; 0 without audio


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The model is loaded; requests are taken."""

    model: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The model cannot be loaded; the process ends."""

    failure: Failure


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """How far a prefill is."""

    request_id: int
    num_tokens: int  # of the whole prompt
    num_cached: int  # of these, not computed again
    num_processed: int  # cached ones included
    elapsed_ms: float  # since the prefill began


class NeedMedia(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for the content of media that a request names and the engine does not know."""

    request_id: int
    keys: tuple[bytes, ...]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token with its log probability before the sampling chain, and its rivals."""

    token: int
    token_bytes: bytes  # may be a part of a UTF-8 character
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()  # (token, its bytes, logprob), most likely first


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
    cache: CacheReport | None = None  # of choice 0, which computes the prompt for all


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The end of a request that could not be carried out."""

    request_id: int
    failure: Failure


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One parallel slot."""

    slot_id: int
    state: SlotState
    request_id: int  # -1 when idle
    num_tokens: int  # held in the KV cache
    num_prompt_tokens: int  # of the current request, 0 when idle
    num_decoded: int  # of the current request


class Status(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `GetStatus`."""

    status_id: int
    slots: tuple[SlotStatus, ...]
    num_waiting: int  # requests without a slot
    counters: Counters
    ram: RamSizes
    disk: DiskSizes


class SlotChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `ChangeSlot`."""

    query_id: int
    num_tokens: int = 0  # saved, restored or erased
    num_bytes: int = 0  # written or read
    elapsed_ms: float = 0.0
    failure: Failure | None = None  # None: it was done


class MediaCounts(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Answer to `CountMedia`."""

    query_id: int
    counts: tuple[int, ...] = ()  # tokens in a prompt, begin and end marks included, of each
    failure: Failure | None = None  # None: they could be counted


ToEngine = (
    Load
    | Generate
    | Cancel
    | GetStatus
    | GetCache
    | ChangeCache
    | ChangeSlot
    | MediaData
    | CountMedia
    | Shutdown
)
FromEngine = (
    Hello
    | LoadProgress
    | Ready
    | LoadFailed
    | PromptProgress
    | NeedMedia
    | Delta
    | Finished
    | Failed
    | Status
    | CacheSummary
    | CacheChanged
    | SlotChanged
    | MediaCounts
)
Message = ToEngine | FromEngine

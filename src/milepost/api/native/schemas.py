"""Bodies of llama-server's own endpoints, and the records of their answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from milepost.api.generation_fields import GenerationFields
from milepost.api.http_body import Boolean, Integer, RequestModel, Text
from milepost.api.shapes import LogprobShape, ProgressShape, TimingsShape

# --- requests ----------------------------------------------------------------------------


class NativeFields(GenerationFields):
    """Body of `/completion`."""

    prompt: Any
    logprobs: Integer | None = None  # another name of n_probs


class TokenizeFields(RequestModel):
    """Body of `/tokenize`."""

    content: Any = ""
    add_special: Boolean | None = None
    parse_special: Boolean | None = None
    with_pieces: Boolean | None = None


class DetokenizeFields(RequestModel):
    """Body of `/detokenize`."""

    tokens: Any = ()


class SlotFields(RequestModel):
    """Body of `/slots/{id}`."""

    filename: Text | None = None


# --- answers -----------------------------------------------------------------------------


class NativeChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a `/completion` stream."""

    index: int
    content: str
    tokens: tuple[int, ...]
    stop: bool = False
    id_slot: int = -1
    tokens_predicted: int
    tokens_evaluated: int
    timings: TimingsShape | UnsetType = UNSET
    prompt_progress: ProgressShape | UnsetType = UNSET
    completion_probabilities: tuple[LogprobShape, ...] | UnsetType = UNSET


class LogitBiasShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `generation_settings.logit_bias`; a bias of null bans the token."""

    token: int
    bias: float | None


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's `generation_settings`: what a request was carried out with."""

    seed: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    stop: tuple[str, ...]
    max_tokens: int
    n_predict: int
    ignore_eos: bool
    stream: bool
    logit_bias: tuple[LogitBiasShape, ...]
    n_probs: int
    min_keep: int
    grammar: str
    samplers: tuple[str, ...]
    timings_per_token: bool


class NativeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of `/completion` in one piece, or the last event of a stream."""

    index: int
    content: str
    tokens: tuple[int, ...]
    id_slot: int = -1
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: TimingsShape
    completion_probabilities: tuple[LogprobShape, ...] | UnsetType = UNSET


class PieceShape(msgspec.Struct, frozen=True, kw_only=True):
    """A token of `/tokenize` with its text, or with its bytes where they are no text."""

    id: int
    piece: str | tuple[int, ...]


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/tokenize`."""

    tokens: tuple[int, ...] | tuple[PieceShape, ...]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/detokenize`."""

    content: str


class ApplyTemplateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/apply-template`."""

    prompt: str


class NextTokenShape(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a slot's request."""

    has_next_token: bool
    n_decoded: int


class SlotShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `/slots`."""

    id: int
    n_ctx: int
    speculative: bool = False
    is_processing: bool
    state: str
    id_task: int
    n_prompt_tokens: int
    n_tokens: int
    next_token: tuple[NextTokenShape, ...]


class SlotTimings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a slot action took; one of the two."""

    save_ms: float | UnsetType = UNSET
    restore_ms: float | UnsetType = UNSET


class SlotSavedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/slots/{id}?action=save`."""

    id_slot: int
    filename: str
    n_saved: int  # tokens
    n_written: int  # bytes
    timings: SlotTimings


class SlotRestoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/slots/{id}?action=restore`."""

    id_slot: int
    filename: str
    n_restored: int  # tokens that the slot holds
    n_reusable: int  # of these, what a prompt that goes on from them will not compute again
    n_read: int  # bytes
    timings: SlotTimings


class SlotErasedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/slots/{id}?action=erase`."""

    id_slot: int
    n_erased: int  # tokens


class Modalities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes besides text."""

    vision: bool = False
    audio: bool = False
    video: bool = False


class DefaultGenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Part of `/props`."""

    params: GenerationSettings
    n_ctx: int


class PropsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/props`."""

    default_generation_settings: DefaultGenerationSettings
    total_slots: int
    model_alias: str
    model_path: str  # the file's name only: the folder is nobody's business
    modalities: Modalities
    media_marker: str  # stands for an image or audio in prompts of `/completion`
    endpoint_slots: bool
    endpoint_props: bool = False
    endpoint_metrics: bool
    webui: bool = False
    chat_template: str
    chat_template_tool_use: str | UnsetType = UNSET
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False

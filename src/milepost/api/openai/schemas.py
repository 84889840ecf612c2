"""Bodies of OpenAI's requests, and the records of its answers and stream chunks."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from milepost.api.generation_fields import GenerationFields
from milepost.api.http_body import Boolean, Integer, Text
from milepost.api.shapes import LogprobShape, ProgressShape, TimingsShape, UsageShape

# --- requests ----------------------------------------------------------------------------


class ChatFields(GenerationFields):
    """Body of `/v1/chat/completions`, and of `/apply-template`, which stops after rendering."""

    messages: Any  # checked by milepost.api.openai.messages
    tools: Any = None
    documents: Any = None
    tool_choice: Any = None  # tools are rendered whatever it says; "none": text is never a call
    parallel_tool_calls: Boolean | None = None
    parse_tool_calls: Boolean | None = None
    reasoning_format: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Text | None = None
    reasoning_budget: Integer | None = None
    reasoning_budget_tokens: Integer | None = None
    thinking_budget_tokens: Integer | None = None
    reasoning_budget_message: Text | None = None
    restore_reasoning: Boolean | None = None
    add_generation_prompt: Boolean | None = None
    continue_final_message: Any = None
    logprobs: Boolean | None = None
    top_logprobs: Integer | None = None


class TextFields(GenerationFields):
    """Body of `/v1/completions`."""

    prompt: Any
    logprobs: Integer | None = None
    echo: Boolean | None = None
    suffix: Text | None = None
    best_of: Integer | None = None


# --- chat answers ------------------------------------------------------------------------


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """`logprobs` of a chat choice."""

    content: tuple[LogprobShape, ...]


class FunctionShape(msgspec.Struct, frozen=True, kw_only=True):
    """`function` of a tool call."""

    name: str
    arguments: str  # JSON text, as the model wrote it


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a message."""

    id: str
    type: str = "function"
    function: FunctionShape


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`message` of a chat choice."""

    role: str = "assistant"
    content: str | None  # None: there are only calls
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CallShape, ...] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    tokens: tuple[int, ...] | UnsetType = UNSET  # with return_tokens


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A chat answer in one piece."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChatChoice, ...]
    usage: UsageShape
    timings: TimingsShape


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the function of a call."""

    name: str | UnsetType = UNSET
    arguments: str


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a tool call; the first one has all but the rest of the arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[CallDelta, ...] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | UnsetType = UNSET
    finish_reason: str | None = None
    tokens: tuple[int, ...] | UnsetType = UNSET  # with return_tokens


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChatChunkChoice, ...]
    usage: UsageShape | UnsetType = UNSET
    timings: TimingsShape | UnsetType = UNSET
    prompt_progress: ProgressShape | UnsetType = UNSET


# --- text answers ------------------------------------------------------------------------


class TextLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """`logprobs` of a text choice: parallel lists."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]  # in characters, from the start of the choice's text


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a text answer or chunk."""

    text: str
    index: int
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    tokens: tuple[int, ...] | UnsetType = UNSET  # with return_tokens


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A text answer in one piece, or one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[TextChoice, ...]
    usage: UsageShape | UnsetType = UNSET
    timings: TimingsShape | UnsetType = UNSET
    prompt_progress: ProgressShape | UnsetType = UNSET

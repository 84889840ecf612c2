"""`/v1/chat/completions`: messages in, a message out, in one piece or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.chat_prompt import prepare_chat_prompt
from milepost.api.completion import Completion, plan_completion
from milepost.api.completion_stream import CompletionStream
from milepost.api.fields import field_error, parse_body
from milepost.api.generation_fields import AnswerWishes, build_params, read_n_probs, read_wishes
from milepost.api.http_body import JsonResponse, read_body
from milepost.api.request_log import name_record
from milepost.api.schemas_openai import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatFields,
    ChatLogprobs,
    ChatMessage,
)
from milepost.api.services import Services
from milepost.api.shapes import (
    OPENAI_FINISH_REASONS,
    SYSTEM_FINGERPRINT,
    AnswerHead,
    ChoiceResult,
    TimingsShape,
    logprob_shapes,
    make_head,
    progress_shape,
    sum_timings,
    timings_shape,
    usage_shape,
)
from milepost.api.sse import DONE, EventStreamResponse, encode_event, run_while_connected
from milepost.errors import InvalidRequest
from milepost.protocol.messages import Delta, Finished, PromptProgress

MAX_TOP_LOGPROBS = 20  # OpenAI's limit


def build_chat_router(services: Services) -> APIRouter:
    """Return the routes of this dialect."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    @router.post("/chat/completions")
    async def complete_chat(request: Request) -> Response:
        body = await read_body(request, services.settings.server.max_body_bytes)
        fields = parse_body(ChatFields, body)
        services.check_model_name(fields.model)
        num_logprobs = read_num_logprobs(fields)
        params = build_params(fields, services, num_logprobs)
        wishes = read_wishes(fields, services.settings, num_logprobs)
        prompt = await prepare_chat_prompt(services, fields, len(body))
        head = make_head("chatcmpl", services.model_name)
        record = name_record(request.scope, head.id)
        completion = plan_completion(services, [prompt], params, record)
        if wishes.stream:
            return EventStreamResponse(ChatStream(completion, wishes, head), wishes.ping_interval_s)
        results = await run_while_connected(request.receive, completion.gather())
        return JsonResponse(chat_answer(head, results, completion, wishes))

    return router


def read_num_logprobs(fields: ChatFields) -> int:
    """Return how many alternatives per token are wanted; -1: no logprobs at all."""
    if not fields.logprobs:
        if fields.top_logprobs:
            raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
        return read_n_probs(fields)
    if fields.top_logprobs is None:
        return max(read_n_probs(fields), 0)
    if not 0 <= fields.top_logprobs <= MAX_TOP_LOGPROBS:
        raise field_error(
            "top_logprobs", f"must be between 0 and {MAX_TOP_LOGPROBS}", fields.top_logprobs
        )
    return fields.top_logprobs


def chat_answer(
    head: AnswerHead,
    results: Sequence[ChoiceResult],
    completion: Completion,
    wishes: AnswerWishes,
) -> ChatAnswer:
    """Return the answer in one piece."""
    return ChatAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=SYSTEM_FINGERPRINT,
        choices=tuple(
            ChatChoice(
                index=index,
                message=ChatMessage(content=result.text),
                logprobs=(
                    ChatLogprobs(content=logprob_shapes(result.logprobs))
                    if wishes.logprobs
                    else None
                ),
                finish_reason=OPENAI_FINISH_REASONS[result.end.reason],
                tokens=tuple(result.tokens) if wishes.tokens else UNSET,
            )
            for index, result in enumerate(results)
        ),
        usage=usage_shape(completion.ends, completion.num_choices),
        timings=sum_timings(completion.ends, completion.num_choices),
    )


class ChatStream(CompletionStream):
    """Chunks of a chat answer.

    The role comes first and at once, so that a client sees life before a long prefill. Progress
    chunks have an empty delta: repeating the role, as llama-server does, would be appended to it
    by clients that add deltas up.
    """

    def __init__(self, completion: Completion, wishes: AnswerWishes, head: AnswerHead) -> None:
        super().__init__(completion, wishes, asyncio.get_running_loop().time)
        self._head = head

    def begin(self) -> bytes:
        """Return a chunk with the role for each choice."""
        role = ChatDelta(role="assistant", content="")
        return b"".join(
            self._chunk((ChatChunkChoice(index=index, delta=role),))
            for index in range(self.completion.num_results)
        )

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Return a chunk with `prompt_progress`."""
        choice = ChatChunkChoice(index=index, delta=ChatDelta())
        return self._chunk((choice,), prompt_progress=progress_shape(progress))

    def delta(self, index: int, delta: Delta, timings: TimingsShape | None) -> bytes:
        """Return a chunk with new text."""
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=delta.text),
            logprobs=(
                ChatLogprobs(content=logprob_shapes(delta.logprobs))
                if self.wishes.logprobs
                else UNSET
            ),
            tokens=delta.tokens if self.wishes.tokens else UNSET,
        )
        return self._chunk((choice,), timings=timings or UNSET)

    def finish(self, index: int, end: Finished) -> bytes:
        """Return the last chunk of a choice."""
        reason = OPENAI_FINISH_REASONS[end.reason]
        choice = ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason)
        return self._chunk((choice,), timings=timings_shape(end.timings))

    def end(self) -> bytes:
        """Return the usage, if it is wanted, and the end mark."""
        if not self.wishes.include_usage:
            return DONE
        ends, num_choices = self.completion.ends, self.completion.num_choices
        usage = self._chunk(
            (), usage=usage_shape(ends, num_choices), timings=sum_timings(ends, num_choices)
        )
        return usage + DONE

    def _chunk(self, choices: tuple[ChatChunkChoice, ...], **extra: Any) -> bytes:
        head = self._head
        return encode_event(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=SYSTEM_FINGERPRINT,
                choices=choices,
                **extra,
            )
        )

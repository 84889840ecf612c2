"""`/v1/completions`: prompts in, their continuations out, in one piece or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.completion import Completion, CompletionStream, Prompt, plan_completion
from milepost.api.gate import name_record
from milepost.api.generation_fields import (
    INT32_MAX,
    AnswerOptions,
    build_params,
    check_range,
    make_text_constraint,
    read_answer_options,
    read_n_probs,
)
from milepost.api.http_body import (
    DONE,
    EventStreamResponse,
    JsonResponse,
    encode_event,
    parse_body,
    read_body,
    run_while_connected,
)
from milepost.api.openai.schemas import TextAnswer, TextChoice, TextFields, TextLogprobs
from milepost.api.server import ServedModel, Server
from milepost.api.shapes import (
    LOWEST_LOGPROB,
    OPENAI_FINISH_REASONS,
    SYSTEM_FINGERPRINT,
    AnswerHead,
    ChoiceResult,
    TimingsShape,
    make_head,
    progress_shape,
    sum_timings,
    timings_shape,
    usage_shape,
)
from milepost.chat.prompts.raw_prompts import tokenize_raw
from milepost.errors import NotSupported
from milepost.protocol.messages import (
    Delta,
    Finished,
    PromptInput,
    PromptProgress,
    TokenLogprob,
    encode_tokens,
)


def build_completions_router(server: Server) -> APIRouter:
    """Return the routes of this dialect."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def complete_text(request: Request) -> Response:
        body = await read_body(request, server.settings.max_body_bytes)
        fields = parse_body(TextFields, body)
        model = server.choose_model(fields.model)
        _check_unsupported(fields)
        num_logprobs = read_num_logprobs(fields)
        params = build_params(fields, model, num_logprobs)
        options = read_answer_options(fields, server.settings, num_logprobs)
        prompts = await server.preparation.run(len(body), lambda: prepare(model, fields))
        head = make_head("cmpl", model.name)
        record = name_record(request.scope, head.id)
        completion = plan_completion(server, model, prompts, params, record)
        if options.stream:
            return EventStreamResponse(
                TextStream(completion, options, head), options.ping_interval_s
            )
        results = await run_while_connected(request.receive, completion.gather())
        return JsonResponse(text_answer(head, results, completion, options))

    return router


def prepare(model: ServedModel, fields: TextFields) -> list[Prompt]:
    """Return the prompts as tokens, with what their continuations are held to."""
    constraint = make_text_constraint(fields, model.prompts.grammars)
    return [
        Prompt(PromptInput(tokens=encode_tokens(tokens), constraint=constraint))
        for tokens in tokenize_raw(model.vocab, fields.prompt)
    ]


def read_num_logprobs(fields: TextFields) -> int:
    """Return how many alternatives per token are wanted; -1: no logprobs at all."""
    if fields.logprobs is None:
        return read_n_probs(fields)
    check_range("logprobs", fields.logprobs, 0, INT32_MAX)
    return fields.logprobs


def text_logprobs(logprobs: Iterable[TokenLogprob], first_offset: int) -> TextLogprobs:
    """Return logprobs as parallel lists; `first_offset` is where the first token's text starts."""
    entries = list(logprobs)
    tokens = tuple(_token_text(entry.token_bytes) for entry in entries)
    offsets = []
    offset = first_offset
    for entry in entries:
        offsets.append(offset)
        offset += _num_chars(entry.token_bytes)
    return TextLogprobs(
        tokens=tokens,
        token_logprobs=tuple(max(entry.logprob, LOWEST_LOGPROB) for entry in entries),
        top_logprobs=tuple(
            {_token_text(piece): max(logprob, LOWEST_LOGPROB) for _, piece, logprob in entry.top}
            for entry in entries
        ),
        text_offset=tuple(offsets),
    )


def text_answer(
    head: AnswerHead,
    results: Sequence[ChoiceResult],
    completion: Completion,
    options: AnswerOptions,
) -> TextAnswer:
    """Return the answer in one piece."""
    return TextAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=SYSTEM_FINGERPRINT,
        choices=tuple(
            TextChoice(
                text=result.text,
                index=index,
                logprobs=text_logprobs(result.logprobs, 0) if options.logprobs else None,
                finish_reason=OPENAI_FINISH_REASONS[result.end.reason],
                tokens=tuple(result.tokens) if options.tokens else UNSET,
            )
            for index, result in enumerate(results)
        ),
        usage=usage_shape(completion.ends, completion.num_choices),
        timings=sum_timings(completion.ends, completion.num_choices),
    )


class TextStream(CompletionStream):
    """Chunks of a text answer."""

    def __init__(self, completion: Completion, options: AnswerOptions, head: AnswerHead) -> None:
        super().__init__(completion, options, asyncio.get_running_loop().time)
        self._head = head
        self._offsets = [0] * completion.num_results  # of the next token's text, per choice

    def begin(self) -> bytes:
        """Return nothing: there is no role to tell."""
        return b""

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Return a chunk with `prompt_progress`."""
        choice = TextChoice(text="", index=index)
        return self._chunk((choice,), prompt_progress=progress_shape(progress))

    def delta(self, index: int, delta: Delta, timings: TimingsShape | None) -> bytes:
        """Return a chunk with new text."""
        logprobs = None
        if self.options.logprobs:
            logprobs = text_logprobs(delta.logprobs, self._offsets[index])
            self._offsets[index] += sum(_num_chars(entry.token_bytes) for entry in delta.logprobs)
        choice = TextChoice(
            text=delta.text,
            index=index,
            logprobs=logprobs,
            tokens=delta.tokens if self.options.tokens else UNSET,
        )
        return self._chunk((choice,), timings=timings or UNSET)

    def finish(self, index: int, end: Finished) -> bytes:
        """Return the last chunk of a choice."""
        reason = OPENAI_FINISH_REASONS[end.reason]
        choice = TextChoice(text="", index=index, finish_reason=reason)
        return self._chunk((choice,), timings=timings_shape(end.timings))

    def end(self) -> bytes:
        """Return the usage, if it is wanted, and the end mark."""
        if not self.options.include_usage:
            return DONE
        ends, num_choices = self.completion.ends, self.completion.num_choices
        usage = self._chunk(
            (), usage=usage_shape(ends, num_choices), timings=sum_timings(ends, num_choices)
        )
        return usage + DONE

    def _chunk(self, choices: tuple[TextChoice, ...], **extra: Any) -> bytes:
        head = self._head
        return encode_event(
            TextAnswer(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=SYSTEM_FINGERPRINT,
                choices=choices,
                **extra,
            )
        )


def _check_unsupported(fields: TextFields) -> None:
    if fields.echo:
        raise NotSupported("'echo' is not supported", param="echo")
    if fields.suffix:
        raise NotSupported("'suffix' is not supported", param="suffix")
    if fields.best_of not in (None, 1):
        raise NotSupported("'best_of' is not supported; use 'n'", param="best_of")


def _token_text(piece: bytes) -> str:
    """Return the text of a token; OpenAI's `bytes:\\xe2\\x80` for a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _num_chars(piece: bytes) -> int:
    """Count the characters that begin in a piece: all bytes but UTF-8 continuations."""
    return sum(byte & 0xC0 != 0x80 for byte in piece)

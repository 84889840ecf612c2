"""`/completion`: llama-server's own text endpoint, in one piece or as a stream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.completion import Completion, CompletionStream, Prompt, plan_completion
from milepost.api.gate import name_record
from milepost.api.generation_fields import (
    AnswerOptions,
    build_params,
    make_text_constraint,
    read_answer_options,
    read_n_probs,
)
from milepost.api.http_body import (
    EventStreamResponse,
    JsonResponse,
    encode_event,
    parse_body,
    read_body,
    run_while_connected,
)
from milepost.api.multimodal_prompt import prepare_raw_prompts
from milepost.api.native.schemas import (
    GenerationSettings,
    LogitBiasShape,
    NativeAnswer,
    NativeChunk,
    NativeFields,
)
from milepost.api.server import ServedModel, Server
from milepost.api.shapes import (
    ChoiceResult,
    TimingsShape,
    logprob_shapes,
    make_head,
    progress_shape,
    timings_shape,
)
from milepost.chat.vocab import Vocab
from milepost.protocol.messages import (
    Delta,
    Finished,
    FinishReason,
    GenerationParams,
    PromptInput,
    PromptProgress,
    decode_tokens,
)
from milepost.protocol.sampling import SamplingParams

STOP_TYPES: dict[FinishReason, str] = {
    "eos": "eos",
    "stop_string": "word",
    "limit": "limit",
    "context_full": "limit",
    "cancelled": "none",
}


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """What an answer repeats of its request."""

    model_name: str
    prompts: Sequence[Prompt]
    params: GenerationParams
    options: AnswerOptions
    vocab: Vocab

    def prompt_of(self, index: int) -> PromptInput:
        """Return the prompt of a choice."""
        return self.prompts[index // self.params.num_choices].input


def build_native_completion_router(server: Server) -> APIRouter:
    """Return the routes of this dialect."""
    router = APIRouter()

    @router.post("/completion")
    @router.post("/completions")
    async def complete(request: Request) -> Response:
        body = await read_body(request, server.settings.max_body_bytes)
        fields = parse_body(NativeFields, body)
        model = server.choose_model(fields.model)
        num_logprobs = _read_num_logprobs(fields)
        params = build_params(fields, model, num_logprobs)
        options = read_answer_options(fields, server.settings, num_logprobs)
        prompts = await prepare(server, model, fields, len(body))
        # llama-server's answer has no id; the list of requests needs one.
        record = name_record(request.scope, make_head("cmpl", model.name).id)
        completion = plan_completion(server, model, prompts, params, record)
        native = NativeRequest(model.name, prompts, params, options, model.vocab)
        if options.stream:
            return EventStreamResponse(NativeStream(completion, native), options.ping_interval_s)
        results = await run_while_connected(request.receive, completion.gather())
        answers = [native_answer(native, i, result) for i, result in enumerate(results)]
        return JsonResponse(answers[0] if len(answers) == 1 else answers)

    return router


async def prepare(
    server: Server, model: ServedModel, fields: NativeFields, num_body_bytes: int
) -> list[Prompt]:
    """Return the prompts as tokens, with what their continuations are held to."""
    constraint = await server.preparation.run(
        num_body_bytes, lambda: make_text_constraint(fields, model.prompts.grammars)
    )
    prompts = await prepare_raw_prompts(server, model, fields.prompt, num_body_bytes)
    return [
        replace(prompt, input=msgspec.structs.replace(prompt.input, constraint=constraint))
        for prompt in prompts
    ]


def native_answer(native: NativeRequest, index: int, result: ChoiceResult) -> NativeAnswer:
    """Return the answer for one choice; of a stream, its last event, which has no text."""
    end = result.end
    options = native.options
    text = result.text
    return NativeAnswer(
        index=index,
        content="" if options.stream else text,
        tokens=() if options.stream or not options.tokens else tuple(result.tokens),
        model=native.model_name,
        tokens_predicted=end.timings.predicted_n,
        tokens_evaluated=end.num_prompt_tokens,
        generation_settings=generation_settings(
            native.params.sampling, native.params, native.options
        ),
        prompt=native.vocab.detokenize(
            decode_tokens(native.prompt_of(index).tokens).tolist(), special=True
        ),
        has_new_line="\n" in text,
        truncated=end.reason == "context_full",
        stop_type=STOP_TYPES[end.reason],
        stopping_word=end.stop_string,
        tokens_cached=end.num_prompt_tokens + end.timings.predicted_n,
        timings=timings_shape(end.timings),
        completion_probabilities=(
            logprob_shapes(result.logprobs) if options.logprobs and not options.stream else UNSET
        ),
    )


def generation_settings(
    sampling: SamplingParams,
    params: GenerationParams | None = None,
    options: AnswerOptions | None = None,
) -> GenerationSettings:
    """Return settings as llama-server lists them; without a request, those of the server."""
    same = {
        name: getattr(sampling, name)
        for name in sampling.__struct_fields__
        if name in GenerationSettings.__struct_fields__ and name != "logit_bias"
    }
    return GenerationSettings(
        **same,
        logit_bias=tuple(
            LogitBiasShape(token=token, bias=bias if math.isfinite(bias) else None)
            for token, bias in sampling.logit_bias
        ),
        stop=params.stop if params else (),
        max_tokens=params.max_tokens if params else -1,
        n_predict=params.max_tokens if params else -1,
        n_probs=max(params.num_logprobs, 0) if params else 0,
        stream=options.stream if options else False,
        timings_per_token=options.timings_per_token if options else False,
    )


class NativeStream(CompletionStream):
    """Events of a `/completion` stream; there is no end mark."""

    def __init__(self, completion: Completion, native: NativeRequest) -> None:
        super().__init__(completion, native.options, asyncio.get_running_loop().time)
        self._native = native
        self._has_new_line = [False] * completion.num_results

    def begin(self) -> bytes:
        """Return nothing: there is nothing to say yet."""
        return b""

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Return an event with `prompt_progress`."""
        return encode_event(
            NativeChunk(
                index=index,
                content="",
                tokens=(),
                tokens_predicted=0,
                tokens_evaluated=progress.num_tokens,
                prompt_progress=progress_shape(progress),
            )
        )

    def delta(self, index: int, delta: Delta, timings: TimingsShape | None) -> bytes:
        """Return an event with new text."""
        self._has_new_line[index] |= "\n" in delta.text
        return encode_event(
            NativeChunk(
                index=index,
                content=delta.text,
                tokens=delta.tokens,
                tokens_predicted=self.num_decoded[index],
                tokens_evaluated=self._native.prompt_of(index).num_tokens,
                timings=timings or UNSET,
                completion_probabilities=(
                    logprob_shapes(delta.logprobs) if self.options.logprobs else UNSET
                ),
            )
        )

    def finish(self, index: int, end: Finished) -> bytes:
        """Return the last event of a choice."""
        answer = native_answer(self._native, index, ChoiceResult(finished=end))
        return encode_event(msgspec.structs.replace(answer, has_new_line=self._has_new_line[index]))

    def end(self) -> bytes:
        """Return nothing."""
        return b""


def _read_num_logprobs(fields: NativeFields) -> int:
    if fields.n_probs is None and fields.logprobs is not None:
        fields = fields.model_copy(update={"n_probs": fields.logprobs})
    return read_n_probs(fields)

"""`/v1/chat/completions`: messages in, a message out, in one piece or as a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from milepost.api.completion import Completion, CompletionStream, plan_completion
from milepost.api.gate import name_record
from milepost.api.generation_fields import (
    AnswerOptions,
    build_params,
    read_answer_options,
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
from milepost.api.openai.chat_request import prepare_chat, read_num_logprobs
from milepost.api.openai.schemas import (
    CallDelta,
    CallShape,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatFields,
    ChatLogprobs,
    ChatMessage,
    FunctionDelta,
    FunctionShape,
)
from milepost.api.server import Server
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
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.replies.reply_plan import ReplyPlan
from milepost.protocol.messages import Delta, Finished, FinishReason, PromptProgress

logger = logging.getLogger(__name__)
TRUNCATED: tuple[FinishReason, ...] = ("limit", "context_full", "cancelled")


def build_chat_router(server: Server) -> APIRouter:
    """Return the routes of this dialect."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    @router.post("/chat/completions")
    async def complete_chat(request: Request) -> Response:
        body = await read_body(request, server.settings.max_body_bytes)
        fields = parse_body(ChatFields, body)
        model = server.choose_model(fields.model)
        num_logprobs = read_num_logprobs(fields)
        params = build_params(fields, model, num_logprobs)
        options = read_answer_options(fields, server.settings, num_logprobs)
        prompt, plan = await prepare_chat(server, model, fields, len(body))
        head = make_head("chatcmpl", model.name)
        record = name_record(request.scope, head.id)
        completion = plan_completion(server, model, [prompt], params, record)
        if options.stream:
            stream = ChatStream(completion, options, head, plan)
            return EventStreamResponse(stream, options.ping_interval_s)
        results = await run_while_connected(request.receive, completion.gather())
        return JsonResponse(
            chat_answer(head, read_choices(results, plan, head, options), completion)
        )

    return router


def read_choices(
    results: Sequence[ChoiceResult], plan: ReplyPlan, head: AnswerHead, options: AnswerOptions
) -> tuple[ChatChoice, ...]:
    """Return the choices of an answer in one piece."""
    choices: list[ChatChoice] = []
    for index, result in enumerate(results):
        reply = ChatReply(plan, head.id)
        reason = result.end.reason
        events = [*reply.read(result.text), *reply.finish(reason)]
        logprobs = ChatLogprobs(content=logprob_shapes(result.logprobs))
        choices.append(
            ChatChoice(
                index=index,
                message=make_message(events),
                logprobs=logprobs if options.logprobs else None,
                finish_reason=reply.finish_reason(reason),
                tokens=tuple(result.tokens) if options.tokens else UNSET,
            )
        )
    return tuple(choices)


def chat_answer(
    head: AnswerHead, choices: tuple[ChatChoice, ...], completion: Completion
) -> ChatAnswer:
    """Return the answer in one piece."""
    return ChatAnswer(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=SYSTEM_FINGERPRINT,
        choices=choices,
        usage=usage_shape(completion.ends, completion.num_choices),
        timings=sum_timings(completion.ends, completion.num_choices),
    )


class ChatStream(CompletionStream):
    """Chunks of a chat answer.

    The role comes first and at once, so that a client sees life before a long prefill. Progress
    chunks have an empty delta: repeating the role, as llama-server does, would be appended to it
    by clients that add deltas up.

    One step of the engine may become several chunks, or none while text is held back that may
    become a marker. Its logprobs and tokens go with the first of them, whatever that adds, and
    with an empty delta where there is none: those of a chat are of all that was sampled.
    """

    def __init__(
        self, completion: Completion, options: AnswerOptions, head: AnswerHead, plan: ReplyPlan
    ) -> None:
        super().__init__(completion, options, asyncio.get_running_loop().time)
        self._head = head
        self._replies = [ChatReply(plan, head.id) for _ in range(completion.num_results)]
        self._may_call = bool(plan.tools)

    def begin(self) -> bytes:
        """Return a chunk with the role for each choice; null content becomes text or stays."""
        role = ChatDelta(role="assistant", content=None if self._may_call else "")
        return b"".join(
            self._chunk((ChatChunkChoice(index=index, delta=role),))
            for index in range(self.completion.num_results)
        )

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """Return a chunk with `prompt_progress`."""
        choice = ChatChunkChoice(index=index, delta=ChatDelta())
        return self._chunk((choice,), prompt_progress=progress_shape(progress))

    def delta(self, index: int, delta: Delta, timings: TimingsShape | None) -> bytes:
        """Return chunks with what new text adds."""
        deltas = list(make_deltas(self._replies[index].read(delta.text)))
        if self.options.tokens or self.options.logprobs:
            deltas = deltas or [ChatDelta()]
        frames = [
            self._chunk((ChatChunkChoice(index=index, delta=added),), timings=timings or UNSET)
            for added in deltas[1:]
        ]
        if deltas:
            frames.insert(0, self._first_chunk(index, deltas[0], delta, timings))
        return b"".join(frames)

    def finish(self, index: int, end: Finished) -> bytes:
        """Return the last chunks of a choice: text that was held back, and the reason."""
        reply = self._replies[index]
        rest = [
            self._chunk((ChatChunkChoice(index=index, delta=added),))
            for added in make_deltas(reply.finish(end.reason))
        ]
        reason = reply.finish_reason(end.reason)
        choice = ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason)
        return b"".join(rest) + self._chunk((choice,), timings=timings_shape(end.timings))

    def end(self) -> bytes:
        """Return the usage, if it is wanted, and the end mark."""
        if not self.options.include_usage:
            return DONE
        ends, num_choices = self.completion.ends, self.completion.num_choices
        usage = self._chunk(
            (), usage=usage_shape(ends, num_choices), timings=sum_timings(ends, num_choices)
        )
        return usage + DONE

    def _first_chunk(
        self, index: int, added: ChatDelta, delta: Delta, timings: TimingsShape | None
    ) -> bytes:
        logprobs = ChatLogprobs(content=logprob_shapes(delta.logprobs))
        choice = ChatChunkChoice(
            index=index,
            delta=added,
            logprobs=logprobs if self.options.logprobs else UNSET,
            tokens=delta.tokens if self.options.tokens else UNSET,
        )
        return self._chunk((choice,), timings=timings or UNSET)

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


class ChatReply:
    """Reads one choice; what is not well formed is noted in the log under the answer's id."""

    def __init__(self, plan: ReplyPlan, answer_id: str) -> None:
        self._parser = plan.make_parser()
        self._answer_id = answer_id
        self._has_calls = False

    def read(self, text: str) -> list[ReplyEvent]:
        """Take more text; return what it makes certain."""
        return self._note(self._parser.feed(text))

    def finish(self, reason: FinishReason) -> list[ReplyEvent]:
        """Return the last events."""
        return self._note(self._parser.finish(is_truncated=reason in TRUNCATED))

    def finish_reason(self, reason: FinishReason) -> str:
        """Return OpenAI's word for how the choice ended; only after `finish`."""
        word = OPENAI_FINISH_REASONS[reason]
        return "tool_calls" if word == "stop" and self._has_calls else word

    def _note(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        for event in events:
            if isinstance(event, ParseWarning):
                logger.warning("%s: %s", self._answer_id, event.message)
            elif isinstance(event, CallStart):
                self._has_calls = True
        return events


def make_message(events: Iterable[ReplyEvent]) -> ChatMessage:
    """Return the message that all events of a reply make; content is null beside calls only."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, ContentText):
            content.append(event.text)
        elif isinstance(event, ReasoningText):
            reasoning.append(event.text)
        elif isinstance(event, CallStart):
            calls.append(event)
            arguments.append([])
        elif isinstance(event, CallArguments):
            arguments[event.index].append(event.text)
    shapes = tuple(
        CallShape(id=call.call_id, function=FunctionShape(name=call.name, arguments="".join(texts)))
        for call, texts in zip(calls, arguments, strict=True)
    )
    return ChatMessage(
        content="".join(content) if content or not calls else None,
        reasoning_content="".join(reasoning) if reasoning else UNSET,
        tool_calls=shapes or UNSET,
    )


def make_deltas(events: Iterable[ReplyEvent]) -> Iterator[ChatDelta]:
    """Yield what the events add to a message, one delta for each run of a kind."""
    for kind, run in groupby(events, _kind):
        if kind == "content":
            yield ChatDelta(content=_text(run))
        elif kind == "reasoning":
            yield ChatDelta(reasoning_content=_text(run))
        elif kind == "calls" and (calls := tuple(_call_deltas(run))):
            yield ChatDelta(tool_calls=calls)


def _kind(event: ReplyEvent) -> str:
    if isinstance(event, ContentText):
        return "content"
    if isinstance(event, ReasoningText):
        return "reasoning"
    return "" if isinstance(event, ParseWarning) else "calls"


def _text(events: Iterable[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentText | ReasoningText))


def _call_deltas(events: Iterable[ReplyEvent]) -> Iterator[CallDelta]:
    """Yield one delta for each call; the first of a call has its id and name.

    The end of a call, which deltas do not tell, stands between the events of two calls.
    """
    for index, run in groupby(events, _call_index):
        start: CallStart | None = None
        pieces: list[str] = []
        for event in run:
            if isinstance(event, CallStart):
                start = event
            elif isinstance(event, CallArguments):
                pieces.append(event.text)
        if start is not None or pieces:
            yield _call_delta(index, start, "".join(pieces))


def _call_index(event: ReplyEvent) -> int:
    assert isinstance(event, CallStart | CallArguments | CallEnd)
    return event.index


def _call_delta(index: int, start: CallStart | None, arguments: str) -> CallDelta:
    if start is None:
        return CallDelta(index=index, function=FunctionDelta(arguments=arguments))
    return CallDelta(
        index=index,
        id=start.call_id,
        type="function",
        function=FunctionDelta(name=start.name, arguments=arguments),
    )

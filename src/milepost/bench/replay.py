"""Replays a trace on a server: who is sent when, what is noted about each answer.

`Replay` is the loop; the decisions are in `schedule`, `closed_loop` and `oracle`, the wire is in
`server_client`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from milepost.bench.closed_loop import ReplyBook
from milepost.bench.measures import RequestMeasure, TraceMeasure
from milepost.bench.oracle import Oracle, count_needed, count_prefilled_twice
from milepost.bench.prompts import PromptMaker
from milepost.bench.schedule import Schedule
from milepost.client.media_tokens import Tokens
from milepost.client.server_client import ChatCall, ServerClient
from milepost.errors import BenchmarkFailed
from milepost.traces.answer import ChatAnswer
from milepost.traces.trace import Message, Trace, TraceRequest

RESTART_TIMEOUT_S = 300.0  # arbitrary; a large model from a slow disk
FIRST_GUESS_S = 1.0  # of a prefill on a server that reports no progress; arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a trace is replayed."""

    closed: bool = False  # go on from the server's replies instead of the recorded ones
    concurrency: int = 1  # sessions side by side
    max_tokens: int = 16  # of each answer
    max_requests: int | None = None  # stop after so many
    restart: Callable[[], Awaitable[None]] | None = None  # restarts the server; None: cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replay is."""

    step: str  # what it is doing
    num_done: int
    num_total: int
    elapsed_s: float  # of this step

    @property
    def left_s(self) -> float | None:
        """Guess how long the step still takes, from the requests so far."""
        if not self.num_done:
            return None
        return self.elapsed_s / self.num_done * (self.num_total - self.num_done)


OnProgress = Callable[[Progress], None]


async def replay(
    trace: Trace, server: ServerClient, options: ReplayOptions, on_progress: OnProgress
) -> TraceMeasure:
    """Replay a trace on a connected server. Raises BenchmarkFailed."""
    return await Replay(trace, server, options, on_progress).run()


@dataclass(slots=True)
class _Notes:
    """Sentences for the reader of the result, each said once."""

    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)


class Replay:
    """One replay; `measure` has what is known so far, also after it was interrupted."""

    def __init__(
        self, trace: Trace, server: ServerClient, options: ReplayOptions, on_progress: OnProgress
    ) -> None:
        self._trace = trace
        self._server = server
        self._options = options
        self._on_progress = on_progress
        self._notes = _Notes()
        self._measures: list[RequestMeasure] = []
        self._oracle = Oracle()
        self._replies = ReplyBook()
        self._prompts: dict[int, Tokens] = {}  # open loop: made before the clock starts
        self._prompt_maker = PromptMaker(server, options.max_tokens)
        self._num_total = 0
        self._start_s = time.perf_counter()
        self._took_s: float | None = None  # None: not at its end

    @property
    def measure(self) -> TraceMeasure:
        """What has been measured so far, in the order of the trace."""
        elapsed_s = time.perf_counter() - self._start_s
        return TraceMeasure(
            trace=self._trace.name,
            variant=self._trace.variant,
            server=self._server.traits.name,
            is_closed_loop=self._options.closed,
            concurrency=self._options.concurrency,
            max_tokens=self._options.max_tokens,
            took_s=elapsed_s if self._took_s is None else self._took_s,
            was_interrupted=self._took_s is None,
            notes=tuple(self._notes.sentences),
            requests=tuple(sorted(self._measures, key=lambda measure: measure.id)),
        )

    async def run(self) -> TraceMeasure:
        """Replay the trace. Raises BenchmarkFailed when the server takes no more requests."""
        requests = self._choose_requests()
        await self._prepare_prompts(requests)
        self._start_s = time.perf_counter()
        await self._send_all(requests)
        self._took_s = time.perf_counter() - self._start_s
        return self.measure

    def _choose_requests(self) -> list[TraceRequest]:
        requests = []
        skipped: dict[str, int] = {}
        for request in self._trace.requests():
            if request.needs and request.needs not in self._server.traits.abilities:
                skipped[request.needs] = skipped.get(request.needs, 0) + 1
            else:
                requests.append(request)
        for need, count in skipped.items():
            self._notes.add(f"skipped, because they need {need}: {count}")
        return requests[: self._options.max_requests]

    async def _prepare_prompts(self, requests: Sequence[TraceRequest]) -> None:
        """Tokenise all prompts before the first is sent, so that it takes no time from answers.

        Finds out early, too, what the template refuses and what does not fit into the context.
        """
        if not self._server.traits.is_native:
            self._notes.add("the server has no /tokenize: what would have been needed is not known")
            return
        if requests:
            await self._prompt_maker.check_longest(requests)
        if self._options.closed:
            return  # prompts depend on answers
        self._start_s = time.perf_counter()
        for index, request in enumerate(requests):
            self._report("tokenising", index, len(requests))
            self._prompts[request.id] = await self._prompt_maker.make(request, request.messages)

    async def _send_all(self, requests: Sequence[TraceRequest]) -> None:
        schedule = Schedule(requests, self._options.concurrency)
        self._num_total = len(requests)
        tasks: set[asyncio.Task[TraceRequest]] = set()
        try:
            while True:
                while request := schedule.take():
                    if request.has_restart_before:
                        await self._restart()
                    tasks.add(asyncio.create_task(self._send(request)))
                self._report("replaying", len(self._measures), self._num_total)
                if not tasks:
                    return
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    schedule.finish(task.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart(self) -> None:
        if self._options.restart is None:
            self._notes.add("the trace restarts the server; it was left running")
            return
        self._report("restarting", len(self._measures), self._num_total)
        await self._options.restart()
        await self._server.wait_until_ready(RESTART_TIMEOUT_S)

    async def _send(self, request: TraceRequest) -> TraceRequest:
        """Send a request, wait for its answer and note what it cost."""
        messages = request.messages
        if self._options.closed:
            messages = self._replies.messages_of(request)
        prompt = await self._find_prompt(request, messages)
        # Before it is sent: what runs beside it has not been computed yet.
        num_known = 0 if prompt is None else self._oracle.count_known(prompt)
        sent_s = time.perf_counter() - self._start_s
        try:
            answer = await self._server.chat(self._make_call(request, messages))
        except BenchmarkFailed as error:
            raise BenchmarkFailed(f"request {request.id} ({request.kind}): {error}") from None
        num_oracle = None
        if prompt is not None and (num_computed := _count_computed(prompt, answer)) is not None:
            num_oracle = count_needed(len(prompt), num_known, num_computed)
            await self._remember(prompt[:num_computed], answer)
        if answer.status == "ok":
            self._replies.note(request, answer.reply)
        self._measures.append(make_measure(request, answer, num_oracle, sent_s))
        self._note_gaps(answer, prompt)
        return request

    async def _find_prompt(
        self, request: TraceRequest, messages: Sequence[Message]
    ) -> Tokens | None:
        if not self._server.traits.is_native:
            return None
        if self._options.closed:
            return await self._prompt_maker.make(request, messages)
        return self._prompts[request.id]

    def _make_call(self, request: TraceRequest, messages: Sequence[Message]) -> ChatCall:
        fraction = request.cancel_after_fraction
        cancel_after_s = None
        if fraction is not None and not self._server.traits.is_native:
            longest_s = max((m.ttft_s or 0.0 for m in self._measures), default=0.0)
            cancel_after_s = fraction * (longest_s or FIRST_GUESS_S)
        return ChatCall(
            messages=messages,
            tools=request.tools,
            max_tokens=self._options.max_tokens,
            cancel_after_fraction=fraction,
            cancel_after_s=cancel_after_s,
        )

    async def _remember(self, computed: Tokens, answer: ChatAnswer) -> None:
        """Tell the oracle what was computed of a prompt, and decoded after it."""
        if answer.status == "ok" and answer.text:
            decoded = await self._server.tokenize_text(answer.text)
            computed = np.concatenate([computed, decoded])
        self._oracle.remember(computed)

    def _note_gaps(self, answer: ChatAnswer, prompt: Tokens | None) -> None:
        if answer.status == "ok" and answer.num_prefilled is None:
            self._notes.add("the server does not report how many prompt tokens were cached")
        if answer.status == "ok" and answer.prefill_ms is None:
            self._notes.add("the server does not report the time of its prefills")
        counted = answer.num_prompt_tokens
        if prompt is not None and counted is not None and counted != len(prompt):
            self._notes.add(
                "the server counts other prompt tokens than its /apply-template and /tokenize "
                "give: what was needed is close, but not exact"
            )

    def _report(self, step: str, num_done: int, num_total: int) -> None:
        elapsed_s = time.perf_counter() - self._start_s
        self._on_progress(
            Progress(step=step, num_done=num_done, num_total=num_total, elapsed_s=elapsed_s)
        )


def _count_computed(prompt: Tokens, answer: ChatAnswer) -> int | None:
    """Return how far a prompt was computed; None where that is not known."""
    if answer.status == "ok":
        return len(prompt)
    if answer.status == "failed" or answer.num_cached is None or answer.num_prefilled is None:
        return None
    return min(answer.num_cached + answer.num_prefilled, len(prompt))


def make_measure(
    request: TraceRequest, answer: ChatAnswer, num_oracle: int | None, sent_s: float
) -> RequestMeasure:
    """Return the record of an answered request."""
    is_known = num_oracle is not None and answer.num_prefilled is not None
    return RequestMeasure(
        id=request.id,
        session=request.session,
        kind=request.kind,
        status=answer.status,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_cached=answer.num_cached,
        num_prefilled=answer.num_prefilled,
        num_oracle=num_oracle,
        num_prefilled_twice=(
            count_prefilled_twice(answer.num_prefilled or 0, num_oracle or 0) if is_known else None
        ),
        ttft_s=answer.ttft_s,
        prefill_ms=answer.prefill_ms,
        num_decoded=answer.num_decoded,
        decode_tokens_per_s=answer.decode_tokens_per_s,
        sent_s=sent_s,
        took_s=answer.took_s,
        error=answer.error,
    )

"""Time of a request besides one rendering of its template, its prefill and its decoding.

    python -m benchmarks.request_overhead [--kinds KIND ...] [--repeats N] [--tokens N]

Turn after turn of one long conversation goes through the parts that a server is made of, in one
process: the body as bytes, its fields, boundaries and tokens, the message to the engine over a
socket pair, and the engine's loop around a real context. The first template rendering of a request
and every call into `llama_decode` are timed and taken away; further renderings are not. HTTP itself
is not in it. What the loop does after the last event was sent (states kept for later) is a row of
its own: no client waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.models import write_benchmark_model
from benchmarks.report import Row, Run, Target, finish, make_kinds_parser, read_page_cache
from benchmarks.workloads.long_conversation import make_body, make_conversation
from milepost.api.completion import plan_completion
from milepost.api.gate import RequestRecord
from milepost.api.generation_fields import build_params
from milepost.api.http_body import parse_body
from milepost.api.openai.chat_request import prepare_chat, read_num_logprobs
from milepost.api.openai.schemas import ChatFields
from milepost.api.server import Server
from milepost.assemble import make_server
from milepost.chat.templates.template import ChatTemplate
from milepost.config import EngineSettings, Settings
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.loop import Loop
from milepost.engine.main import choose_parked, make_context, make_runtime, model_info
from milepost.engine.model_runtime import ModelRuntime
from milepost.libllama import Batch, Context, Model, ModelParams, open_library
from milepost.protocol.framing import encode_frame, front_end_reader
from milepost.protocol.messages import Finished, FromEngine, Generate, Ready
from milepost.traces.trace import Message
from milepost.workers.client import EngineClient

CTX_SIZE = 65536
PARALLEL = 4
NUM_DECODED = 2
PIECE_BYTES = 1 << 16
MAX_OVERHEAD_MS = 10.0


@dataclass(slots=True)
class Stopwatch:
    """Adds up the time of calls that are wrapped."""

    elapsed_s: float = 0.0
    num_calls: int = 0
    first_s: float = 0.0  # of the first call
    last_s: float = 0.0  # of the last one

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Time a block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            self.elapsed_s += elapsed
            self.num_calls += 1
            self.first_s = elapsed if self.num_calls == 1 else self.first_s
            self.last_s = elapsed


class TimedContext:
    """A context whose decode calls are timed, and which knows when the first of them began."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.watch = Stopwatch()
        self.first_began = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, batch: Batch) -> None:
        """Decode, and add the time."""
        self.first_began = self.first_began or time.perf_counter()
        with self.watch.running():
            self._context.decode(batch)

    def reset(self) -> None:
        """Begin a request."""
        self.watch, self.first_began = Stopwatch(), 0.0


@dataclass
class DirectConnection:
    """The engine's side of a socket pair, without a thread: requests are put in by hand."""

    sock: socket.socket
    inbox: list[Generate] = field(default_factory=list)
    last_sent: float = 0.0
    is_done: bool = False

    def receive(self, *, wait: bool, timeout_s: float | None = None) -> list[Generate]:
        """Return what was put in."""
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: FromEngine) -> None:
        """Send at once."""
        self.sock.sendall(encode_frame(message))
        self.last_sent = time.perf_counter()
        self.is_done |= isinstance(message, Finished)

    def flush(self) -> None:
        """Nothing is held back."""

    def allow_abort(self, request_id: int) -> None:
        """Nobody cancels."""

    def forbid_abort(self) -> None:
        """Nobody cancels."""


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Where the time of one request went."""

    rendering_ms: float  # one of it
    front_end_ms: float  # all but that, until the frame is encoded
    socket_ms: float  # of the frame, until it is a message again
    before_batch_ms: float  # in the engine: match, plan, restore
    after_batch_ms: float  # between and after batches, until the last event was sent
    states_ms: float  # a part of that: states and cells kept on the way
    keeping_ms: float  # after the last event

    @property
    def overhead_ms(self) -> float:
        """What a client waits for, besides rendering, prefill and decoding."""
        return self.front_end_ms + self.socket_ms + self.before_batch_ms + self.after_batch_ms


LABELS = {
    "rendering_ms": "one rendering (not counted)",
    "front_end_ms": "front end",
    "socket_ms": "socket",
    "before_batch_ms": "engine, before the first batch",
    "after_batch_ms": "engine, between and after batches",
    "states_ms": "of that, states kept on the way",
    "keeping_ms": "engine, after the answer (not counted)",
}


class Bench:
    """Both sides of a server in this process, and what is said between them."""

    def __init__(self, server: Server, runtime: ModelRuntime, settings: EngineSettings) -> None:
        self._server = server
        self._runner = asyncio.Runner()
        self._frames: list[bytes] = []
        self._ours, self._theirs = socket.socketpair()
        self._context = TimedContext(runtime.context)
        self._connection = DirectConnection(self._theirs)
        timed = replace(runtime, context=self._context)  # type: ignore[arg-type]
        self._loop = Loop(timed, self._connection, settings, time.perf_counter)  # type: ignore[arg-type]
        server.choose_model().engine.attach(self._frames.append)
        server.choose_model().engine.take(Ready(model=model_info(runtime, settings, 0.0)))

    def ask(self, messages: list[Message]) -> RequestTimes:
        """Send a conversation through all parts and return where the time went."""
        body = json.dumps(make_body(messages, NUM_DECODED)).encode()
        with watched_method(ChatTemplate, "render") as rendering:
            started = time.perf_counter()
            self._runner.run(self._prepare(body))
            front_end_s = time.perf_counter() - started - rendering.first_s
        socket_s = self._transfer(self._frames[0])
        self._frames.clear()  # the second one is a cancel, because nobody read the answer
        parts = (rendering.first_s, front_end_s, socket_s, *self._compute())
        return RequestTimes(*(1000 * part for part in parts))

    def close(self) -> None:
        """Close what was opened here."""
        self._runner.close()
        self._ours.close()
        self._theirs.close()

    async def _prepare(self, body: bytes) -> None:
        server, model = self._server, self._server.choose_model()
        parsed = parse_body(ChatFields, body)
        params = build_params(parsed, model, read_num_logprobs(parsed))
        prompt, _ = await prepare_chat(server, model, parsed, len(body))
        async with plan_completion(server, model, [prompt], params, RequestRecord()):
            pass  # sent

    def _transfer(self, frame: bytes) -> float:
        reader, num_sent = front_end_reader(), 0
        started = time.perf_counter()
        while not self._connection.inbox:
            num_sent += self._ours.send(frame[num_sent : num_sent + PIECE_BYTES])
            received = reader.feed(self._theirs.recv(PIECE_BYTES))
            self._connection.inbox += (each for each in received if isinstance(each, Generate))
        return time.perf_counter() - started

    def _compute(self) -> tuple[float, float, float, float]:
        connection, context = self._connection, self._context
        context.reset()
        connection.is_done = False
        with watched_method(Checkpointer, "save") as saving:
            started = time.perf_counter()
            while not connection.is_done:
                self._loop.step()
            ended = time.perf_counter()
        self._ours.recv(PIECE_BYTES)
        before_s = context.first_began - started
        after_s = connection.last_sent - context.first_began - context.watch.elapsed_s
        states_s = saving.elapsed_s - saving.last_s  # the last one comes after the last event
        return before_s, after_s, states_s, ended - connection.last_sent


def main() -> None:
    """Measure each memory kind and report the parts and their sum."""
    parser = make_kinds_parser(__doc__ or "", repeats=9, kinds=("hybrid", "full"))
    parser.add_argument("--messages", type=int, default=290, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=30_000, help="about; default: %(default)s")
    arguments = parser.parse_args()
    conversation = make_conversation("harbour", arguments.messages, arguments.tokens)
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            model = write_benchmark_model(kind, Path(folder))
            read_page_cache(model)
            engine = EngineSettings(
                cache_on_disk=False,
                model_path=str(model),
                ctx_size=CTX_SIZE,
                parallel=PARALLEL,
                threads=arguments.threads,
            )
            with open_bench(engine) as bench:
                times = measure_turns(bench, list(conversation), arguments.repeats)
            settings = {
                "kind": kind,
                "messages": len(conversation),
                "tokens": arguments.tokens,
                "ctx_size": CTX_SIZE,
                "threads": arguments.threads,
            }
            run = Run(f"request_overhead-{kind}", model, settings, arguments.results)
            finish(run, make_rows(times))


def measure_turns(bench: Bench, conversation: list[Message], repeats: int) -> list[RequestTimes]:
    """Ask a conversation, and then turn after turn of it; the first two are warm-ups."""
    times = []
    for number in range(repeats + 2):
        times.append(bench.ask(conversation))
        conversation.append({"role": "assistant", "content": f"Step {number} is done."})
        conversation.append({"role": "user", "content": f"Go on with step {number + 1}."})
    return times[2:]


def make_rows(times: list[RequestTimes]) -> list[Row]:
    """Return a row for each part, and their sum."""
    rows = [
        Row(LABELS[part.name], "ms", tuple(getattr(time, part.name) for time in times))
        for part in fields(RequestTimes)
    ]
    target = Target("at most", MAX_OVERHEAD_MS)
    return [*rows, Row("overhead", "ms", tuple(time.overhead_ms for time in times), target)]


@contextlib.contextmanager
def open_bench(settings: EngineSettings) -> Iterator[Bench]:
    """Load a model, and put both sides of a server around it."""
    library = open_library()
    with (
        Model(library, Path(settings.model_path), ModelParams()) as model,
        make_context(model, settings, num_parked := choose_parked(model, settings)) as context,
    ):
        runtime = make_runtime(context, settings, num_parked)
        served = Settings(engine=settings, model_name="benchmark")
        server = make_server(served, EngineClient())
        bench = Bench(server, runtime, settings)
        try:
            yield bench
        finally:
            bench.close()
            server.close()


@contextlib.contextmanager
def watched_method(owner: type, name: str) -> Iterator[Stopwatch]:
    """Time every call of a method within a block."""
    watch, method = Stopwatch(), getattr(owner, name)

    def call_timed(*arguments: Any, **keywords: Any) -> Any:
        with watch.running():
            return method(*arguments, **keywords)

    setattr(owner, name, call_timed)
    try:
        yield watch
    finally:
        setattr(owner, name, method)


if __name__ == "__main__":
    main()

"""The loop of an engine in this process, around a context whose every batch is watched.

What the library is called with is noted here and nowhere else: which micro-batch computed which
prefix, and for which request. Time stands still but for a tick at every look at the clock, so that
a walk with the same seed is the same walk.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.engine.running import GREEDY
from tests.engine.test_loop import FakeConnection
from tests.media_content import Content
from tests.requests import make_generate

from milepost.cache.prefix_cache import PrefixCache
from milepost.config import EngineSettings
from milepost.engine.disk import attach_disk
from milepost.engine.loop import Loop
from milepost.engine.main import choose_parked, make_context, make_runtime
from milepost.engine.media.keys import holds_up_to
from milepost.engine.media.layouts import MediaModel
from milepost.engine.media.prompt import MediaSpan
from milepost.engine.media.worker import Done, Job
from milepost.engine.model_runtime import ModelRuntime
from milepost.errors import DecodeAborted
from milepost.libllama import Batch, Context, Model
from milepost.libllama.media import Projector
from milepost.libllama.media_batch import MediaBatch
from milepost.protocol.messages import (
    Boundary,
    Cancel,
    Delta,
    Failed,
    Finished,
    MediaCounts,
    MediaData,
    NeedMedia,
    TokenLogprob,
)

TICK_S = 0.05  # arbitrary; prefills then seem to take long enough for any restore to be worth it
MAX_STEPS = 5000


@dataclass(slots=True)
class Computed:
    """What the library computed for one request."""

    num_ubatches: int = 0  # of those that held a part of its prompt
    ends: list[int] = field(default_factory=list)  # positions where a micro-batch ended


class Prefixes:
    """By which micro-batch every prefix was computed, the first time; a trie."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}  # (node, token) -> node; 0 is the root
        self._starts = [0]  # of the micro-batch that computed the last token of a node

    def note(self, tokens: np.ndarray, start: int, end: int) -> None:
        """Note that [start, end) of a history were computed together."""
        node = 0
        for token in tokens[:end].tolist():
            child = self._children.setdefault((node, token), len(self._starts))
            if child == len(self._starts):
                self._starts.append(start)
            node = child

    def num_known(self, tokens: np.ndarray) -> int:
        """Return how much of a history was ever computed."""
        node = 0
        for pos, token in enumerate(tokens.tolist()):
            if (node, token) not in self._children:
                return pos
            node = self._children[node, token]
        return len(tokens)

    def find_ends(self, tokens: np.ndarray) -> list[int]:
        """Return the positions where the micro-batches of a history ended, its own end first.

        KeyError if it was never computed.
        """
        node, starts = 0, []
        for token in tokens.tolist():
            node = self._children[node, token]
            starts.append(self._starts[node])
        found, pos = [], len(tokens)
        while pos > 0:
            found.append(pos)
            pos = starts[pos - 1]
        return found


class WatchedContext:
    """A context that notes what it computes, and can be told to stop within a batch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._short = Batch(context.model.library, context.num_batch_tokens)
        self.loop: Loop  # set when it is made
        self.abort_after = -1  # micro-batches of the next prefill that are done before it stops
        self.prefixes = Prefixes()
        self.computed: dict[int, Computed] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def decode(self, batch: Batch) -> None:
        """Compute a batch as the library does, or only its begin."""
        seq_ids = batch._seq_ids[: batch.num_tokens]
        is_alone = len(set(seq_ids.tolist())) == 1
        if (
            self.abort_after >= 0
            and is_alone
            and batch.num_tokens > self._context.num_ubatch_tokens
        ):
            self._abort(batch)
        self._context.decode(batch)
        self._note(seq_ids)

    def _abort(self, batch: Batch) -> None:
        """Stop where llama.cpp may: what is left is whole micro-batches, or nothing at all."""
        num_done = self.abort_after * self._context.num_ubatch_tokens
        if num_done:
            self._short.clear_rows()
            self._short.add_tokens(
                batch._tokens[:num_done].copy(),
                int(batch._positions[0]),
                int(batch._seq_ids[0]),
                wants_last=False,
            )
            self._context.decode(self._short)
            self._note(batch._seq_ids[:num_done])
        raise DecodeAborted("aborted")

    def decode_media(self, batch: MediaBatch, *, is_causal: bool) -> None:
        """Compute a part of an image as the library does."""
        self._context.decode_media(batch, is_causal=is_causal)
        self._note(np.full(batch.num_tokens, batch._seq_id[0]))

    def _note(self, seq_ids: np.ndarray) -> None:
        num_ubatch = self._context.num_ubatch_tokens
        for choice in self.loop.parts.scheduler.running.values():
            slot = self.loop.parts.slots[choice.slot_id]
            num_new = int(np.count_nonzero(seq_ids == slot.seq_id))
            if num_new == 0:
                continue
            computed = self.computed.setdefault(choice.request.request_id, Computed())
            first = slot.num_tokens + slot.num_partial
            stop = first + num_new
            for start in range(first, stop, num_ubatch):
                end = min(start + num_ubatch, stop)
                self.prefixes.note(choice.tokens, start, end)
                if choice.index == 0:
                    computed.ends.append(end)
                    computed.num_ubatches += start < len(choice.request.prompt)


@dataclass(slots=True)
class Reply:
    """All that came for the first choice of a request."""

    prompt: np.ndarray  # with its media
    spans: tuple[MediaSpan, ...] = ()
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None
    failed: Failed | None = None

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.logprobs]

    @property
    def num_cached(self) -> int:
        assert self.finished is not None
        return self.finished.timings.cache_n


@dataclass
class WatchedEngine:
    """A loop, and both sides of it."""

    loop: Loop
    runtime: ModelRuntime
    context: WatchedContext
    connection: FakeConnection
    replies: dict[int, Reply] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    contents: dict[bytes, bytes] = field(default_factory=dict)  # of images, by key
    num_asked: int = 0  # for contents
    gone: set[int] = field(default_factory=set)  # requests whose contents are not there any more
    counts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # that came, by query
    media_waits: bool = False  # replies then know their text alone

    def send(self, prompt: list[int], **fields: Any) -> int:
        """Put a request into the queue; return its number."""
        number = next(self.numbers)
        tokens = np.array(prompt, np.int32)
        fields = {"sampling": GREEDY, "num_logprobs": 10, **fields}
        message = make_generate(number, tokens, **fields)
        self.replies[number] = Reply(tokens)
        if not self.media_waits:
            expanded = self.loop.parts.media.expand(message, tokens)
            self.replies[number] = Reply(expanded.keys, expanded.spans)
        self.connection.inbox.append(message)
        return number

    def cancel(self, number: int) -> None:
        """Put a cancel into the queue."""
        self.connection.inbox.append(Cancel(request_id=number))

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do."""
        return any(reply.finished is None for reply in self.replies.values())

    def step(self) -> None:
        """Let the loop do one step, and sort what it sent."""
        self.loop.step()
        for message in self.connection.sent:
            if isinstance(message, Delta):
                self.replies[message.request_id].logprobs += message.logprobs
            if isinstance(message, Finished):
                self.replies[message.request_id].finished = message
            if isinstance(message, Failed):
                self.replies[message.request_id].failed = message
            if isinstance(message, NeedMedia):
                self._send_media(message)
            if isinstance(message, MediaCounts):
                self.counts[message.query_id] = message.counts
        self.connection.sent.clear()

    def _send_media(self, message: NeedMedia) -> None:
        for key in message.keys:
            self.num_asked += 1
            data = b"" if message.request_id in self.gone else self.contents[key]
            self.connection.inbox.append(MediaData(key=key, data=data))

    def step_aborted(self, num_ubatches: int) -> None:
        """Let the loop do one step that stops after so many micro-batches of a prefill."""
        self.context.abort_after = num_ubatches
        self.step()
        self.context.abort_after = -1

    def wait(self, *numbers: int) -> None:
        """Step until these requests have ended."""
        for _ in range(MAX_STEPS):
            if all(self.replies[number].finished for number in numbers):
                return
            self.step()
        raise AssertionError(f"requests {numbers} have not ended after {MAX_STEPS} steps")

    def ask(self, prompt: list[int], **fields: Any) -> Reply:
        """Return the whole reply to one request."""
        number = self.send(prompt, **fields)
        self.wait(number)
        return self.replies[number]

    def ends_of(self, number: int) -> list[int]:
        """Return where the micro-batches ended that a prompt and its answer were computed in."""
        reply = self.replies[number]
        reused = reply.prompt[: reply.num_cached]
        return sorted({*self.context.prefixes.find_ends(reused), *self._computed_ends(number)})

    def check_idle(self) -> None:
        """Check that nobody runs, that slots hold what they say, and the cache its promises."""
        slots = self.loop.parts.slots
        assert not self.loop.parts.scheduler.running
        assert slots.num_idle == len(slots.slots)
        for slot in slots.all:
            assert slot.num_partial == 0
            pos_max = self.context.pos_max(slot.seq_id)
            assert holds_up_to(slot.held, pos_max) if slot.num_tokens else pos_max == -1
        assert self.context.pos_max(slots.spare_id) == -1
        self.runtime.cache.check_invariants()

    def _computed_ends(self, number: int) -> list[int]:
        computed = self.context.computed.get(number, Computed())
        return [pos for pos in computed.ends if pos <= len(self.replies[number].prompt)]


class WakingConnection(FakeConnection):
    """One that `wake` keeps from waiting."""

    is_woken = False

    def wake(self) -> None:
        self.is_woken = True

    def receive(self, *, wait: bool, timeout_s: float | None = None) -> list[Any]:
        is_woken, self.is_woken = self.is_woken, False
        return super().receive(wait=wait and not is_woken, timeout_s=timeout_s)


@dataclass
class SteppedWorker:
    """What `MediaWorker` does, without a thread: a walk with the same seed is the same walk.

    Jobs are done at once, or when `work` is called.
    """

    projector: Projector
    connection: WakingConnection
    waits: bool = False
    jobs: list[Job] = field(default_factory=list)
    calls: list[Callable[[], None]] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    has_files: bool = False

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        if not self.waits:
            self.work()

    def work(self) -> None:
        """Do all jobs that were not cancelled."""
        for function in self.calls:
            function()
        self.calls.clear()
        for job in self.jobs:
            assert job.data is not None
            if job.is_cancelled:
                self.done.append(Done(job))
            else:
                self.done.append(Done(job, self.projector.encode(job.size, job.data)))
        self.jobs.clear()
        self.connection.wake()

    def collect(self) -> list[Done]:
        done, self.done = self.done, []
        return done

    def call(self, function: Callable[[], None]) -> None:
        self.calls.append(function)
        if not self.waits:
            self.work()

    def clear(self) -> None: ...

    def close(self) -> bool:
        """Leave the projector to whoever opened it."""
        return False


@dataclass(frozen=True)
class WatchedMedia:
    """A projector, and the images or pieces of audio that may come."""

    projector: Projector
    images: list[Content]
    budget_bytes: int  # of their embeddings
    waits: bool = False  # until `SteppedWorker.work` is called


@contextlib.contextmanager
def watched_engine(
    model: Model,
    settings: EngineSettings,
    budget_bytes: int,
    media: WatchedMedia | None = None,
) -> Iterator[WatchedEngine]:
    """Make the loop of an engine whose batches are watched; its cache has so many bytes.

    It has a disk only if the settings name a folder for it.
    """
    num_parked = choose_parked(model, settings)
    with make_context(model, settings, num_parked) as context:
        runtime = make_runtime(context, settings, num_parked)
        watched, connection = WatchedContext(context), WakingConnection()
        limits = replace(runtime.cache.limits, budget_bytes=budget_bytes)
        cache = PrefixCache(runtime.cache.traits, limits)
        if settings.cache_dir:
            attach_disk(cache, settings, model.library.name, runtime.traits)
        runtime = replace(runtime, context=watched, cache=cache)  # type: ignore[arg-type]
        contents = {}
        if media is not None:
            runtime = replace(runtime, media=media_model(media, connection, settings.ubatch_size))
            contents = {image.ref().key: image.data for image in media.images}
        ticks = itertools.count()
        loop = Loop(runtime, connection, settings, lambda: TICK_S * next(ticks))  # type: ignore[arg-type]
        watched.loop = loop
        waits = media is not None and media.waits
        yield WatchedEngine(
            loop, runtime, watched, connection, contents=contents, media_waits=waits
        )
        loop.close()


def media_model(
    media: WatchedMedia, connection: WakingConnection, num_ubatch_tokens: int
) -> MediaModel:
    """Return what the engine has of a projector."""
    return MediaModel(
        projector=media.projector,
        worker=SteppedWorker(media.projector, connection, media.waits),  # type: ignore[arg-type]
        identity=b"walk",
        budget_bytes=media.budget_bytes,
        num_ubatch_tokens=num_ubatch_tokens,
    )


def boundary(pos: int, kind: Any, index: int = -1, role: str = "") -> Boundary:
    """Return a boundary as the front end would find it."""
    return Boundary(pos=pos, kind=kind, message_index=index, role=role)

"""One engine process from the front end's side: its state, and the requests it works on.

`Supervisor` attaches and detaches the process; the API layer calls `generate`, and what `queries`
adds to it.
Everything runs on the front end's one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from milepost.errors import (
    EngineDied,
    MilepostError,
    QueueFull,
    Unavailable,
)
from milepost.protocol.cache import (
    CacheChanged,
    CacheSummary,
)
from milepost.protocol.failure import error_from
from milepost.protocol.framing import engine_reader, frame_parts
from milepost.protocol.messages import (
    Cancel,
    Delta,
    Failed,
    Finished,
    FromEngine,
    Generate,
    GenerationParams,
    LoadProgress,
    MediaCounts,
    MediaData,
    Message,
    ModelInfo,
    NeedMedia,
    PromptInput,
    PromptProgress,
    Ready,
    Shutdown,
    SlotChanged,
    Status,
)
from milepost.workers.queries import EngineQueries

logger = logging.getLogger(__name__)

EngineState = Literal["starting", "loading", "ready", "failed", "restarting"]
GenerationEvent = PromptProgress | Delta | Finished
ReadMedia = Callable[[bytes], Awaitable[bytes]]  # key -> content; raises what it cannot do

MAX_RETRY_S = 60  # arbitrary; one long prefill may hold everything up for that long


@dataclass(frozen=True, slots=True)
class MediaContents:
    """The decoded bytes of the media of a request, for when the engine wants them."""

    held: Mapping[bytes, bytes] = field(default_factory=dict)  # by key
    read: ReadMedia | None = None  # gets what is not in `held`


NO_MEDIA = MediaContents()


class Generation:
    """A request in an engine: an async iterator of its events, made by `EngineClient.generate`.

    Entering sends it, leaving cancels what still runs. The iterator ends after the `Finished` of
    the last choice; it raises what the engine, or its death, made of the request.
    """

    def __init__(self, client: EngineClient, message: Generate, media: MediaContents) -> None:
        self._client = client
        self._message = message
        self.media = media  # kept as long as the engine may ask for it
        self._events: asyncio.Queue[GenerationEvent | MilepostError] = asyncio.Queue()
        num_choices = message.params.num_choices
        self._num_open = num_choices  # choices whose end was not taken yet
        self.num_running = num_choices  # choices that have not ended in the engine
        self.num_prompt_tokens = message.prompt.num_tokens
        # Called with what comes after the block was left: the rest of a request that was cancelled.
        self.on_late_event: Callable[[Delta | Finished], None] = lambda _: None

    async def __aenter__(self) -> Generation:
        self._client.open(self, self._message)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        while not self._events.empty():
            self.take_late(self._events.get_nowait())
        self._client.close(self, is_running=self._num_open > 0)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> GenerationEvent:
        if self._num_open == 0:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, MilepostError):
            self._num_open = 0
            raise event
        if isinstance(event, Finished):
            self._num_open -= 1
        return event

    @property
    def request_id(self) -> int:
        """The number under which the engine knows it."""
        return self._message.request_id

    def holds(self, key: bytes) -> bool:
        """Say whether a media item is in the prompt."""
        return any(ref.key == key for ref in self._message.prompt.media)

    @property
    def is_open(self) -> bool:
        """Whether a choice has not ended, as far as its events were taken."""
        return self._num_open > 0

    def take_late(self, event: GenerationEvent | MilepostError) -> None:
        """Take an event that nobody will read: the block was left."""
        if isinstance(event, MilepostError):
            self._num_open = 0
        elif isinstance(event, Finished):
            self._num_open -= 1
            self.on_late_event(event)
        elif isinstance(event, Delta):
            self.on_late_event(event)

    def put(self, event: GenerationEvent | MilepostError) -> None:
        """Hand over an event; called by the client."""
        if isinstance(event, Finished):
            self.num_running -= 1
        elif isinstance(event, MilepostError):
            self.num_running = 0
        self._events.put_nowait(event)


class WaitingLine:
    """Refuses what would have to wait after `max_waiting` others; -1: nothing.

    The engine queues whatever it is sent. The front end sees how many choices have not ended and
    how many slots there are, so it knows who waits without asking; a client that has left is out
    at once.
    """

    def __init__(self, max_waiting: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_refused = 0
        self._max_waiting = max_waiting
        self._clock = clock
        self._busy_since_s: float | None = None  # since when no slot has been free
        self._num_left = 0  # requests that ended since then, or whose client went away

    def check(self, num_choices: int, running: Iterable[int], num_slots: int) -> None:
        """Raise QueueFull for a request that would be one too many to wait.

        `running` are the choices of each request that have not ended, in the order of arrival.
        """
        num_waiting = count_waiting([*running, num_choices], num_slots)
        if self._max_waiting < 0 or num_waiting <= self._max_waiting:
            return
        self.num_refused += 1
        raise QueueFull(num_waiting - 1, num_slots, self._estimate_retry_s())

    def note_load(self, num_choices: int, num_slots: int) -> None:
        """Take how many choices have not ended, whenever a request comes or is over."""
        if num_choices < num_slots:
            self._busy_since_s = None
        elif self._busy_since_s is None:
            self._busy_since_s = self._clock()
            self._num_left = 0

    def note_end(self) -> None:
        """A request is over, so that another one moves up."""
        self._num_left += 1

    def _estimate_retry_s(self) -> int:
        """Return in how many seconds the next place should become free, as things went so far."""
        if self._busy_since_s is None:
            return 1
        busy_s = self._clock() - self._busy_since_s
        return min(max(math.ceil(busy_s / max(self._num_left, 1)), 1), MAX_RETRY_S)


class EngineClient(EngineQueries):
    """State of an engine process and the requests that are under way in it."""

    def __init__(self, line: WaitingLine | None = None) -> None:
        super().__init__()
        self.line = line or WaitingLine()
        self.state: EngineState = "starting"
        self.load_fraction = 0.0  # of the weights, while loading
        self.failure = ""  # why it cannot be served, with state "failed"
        self.model: ModelInfo | None = None  # of the last successful load
        self.on_loaded: Callable[[ModelInfo], None] = lambda _: None  # before requests are let in
        self._write: Callable[[bytes], None] | None = None
        self._generations: dict[int, Generation] = {}
        self._left: dict[int, Generation] = {}  # cancelled, and not ended yet
        self._reading: set[asyncio.Future[None]] = set()  # media that the engine waits for
        self._ids = itertools.count(1)

    # --- for the API layer ---------------------------------------------------------------

    def generate(
        self,
        prompt: PromptInput,
        params: GenerationParams,
        media: MediaContents = NO_MEDIA,
    ) -> Generation:
        """Return a generation, to be used in `async with`; raises Unavailable while not ready."""
        self._check_ready()
        message = Generate(request_id=next(self._ids), prompt=prompt, params=params)
        return Generation(self, message, media)

    def check_room(self, num_choices: int) -> None:
        """Raise QueueFull if a request of so many choices would be one too many to wait."""
        running = (generation.num_running for generation in self._generations.values())
        self.line.check(num_choices, running, self._num_slots)

    # --- for Generation ------------------------------------------------------------------

    def open(self, generation: Generation, message: Generate) -> None:
        """Send a request and route its events from now on."""
        self._check_ready()
        self._send(message)
        self._generations[generation.request_id] = generation
        self._note_load()

    def close(self, generation: Generation, *, is_running: bool) -> None:
        """Forget a request; one that is still running is cancelled."""
        if self._generations.pop(generation.request_id, None) is None:
            return
        self.line.note_end()
        self._note_load()
        if is_running:
            self._send(Cancel(request_id=generation.request_id))
            self._left[generation.request_id] = generation

    # --- for Supervisor ------------------------------------------------------------------

    def attach(self, write: Callable[[bytes], None]) -> None:
        """Begin to talk to a new process through `write`, which must not block."""
        self._write = write
        self.state = "loading"
        self.load_fraction = 0.0

    def take(self, message: FromEngine) -> None:
        """Handle a message of the process."""
        match message:
            case Delta() | PromptProgress() | Finished():
                self._take_event(message)
            case NeedMedia():
                self._send_media(message)
            case Failed():
                if generation := self._generations.get(message.request_id):
                    generation.put(error_from(message.failure))
                self._left.pop(message.request_id, None)
            case Status():
                self._take_answer(message.status_id, message)
            case CacheSummary() | CacheChanged() | SlotChanged() | MediaCounts():
                self._take_answer(message.query_id, message)
            case LoadProgress():
                self.load_fraction = message.fraction
            case Ready():
                self._take_ready(message)

    def shut_down(self) -> None:
        """Ask the process to end after its current step."""
        self._send(Shutdown())

    def detach(self, state: EngineState, failure: str = "") -> None:
        """The process is gone: fail everything that waits for it."""
        self._write = None
        self.state = state
        self.failure = failure
        reason = failure or "the engine process ended while it worked on the request; try again"
        for generation in self._generations.values():
            generation.put(EngineDied(reason))
        self._generations.clear()
        self._left.clear()
        self._fail_queries(EngineDied(reason))

    def _take_ready(self, message: Ready) -> None:
        self.model = message.model
        self.on_loaded(message.model)
        self.state = "ready"
        self.failure = ""

    def _take_event(self, message: GenerationEvent) -> None:
        if generation := self._generations.get(message.request_id):
            generation.put(message)
        elif generation := self._left.get(message.request_id):
            self._take_late(generation, message)

    def _take_late(self, generation: Generation, event: GenerationEvent) -> None:
        generation.take_late(event)
        if not generation.is_open:
            del self._left[generation.request_id]

    def _send_media(self, message: NeedMedia) -> None:
        """Send what the engine asks for; what is not there any more is sent empty."""
        for key in message.keys:
            generation = self._find_holder(message.request_id, key)
            media = generation.media if generation is not None else NO_MEDIA
            if key in media.held or media.read is None:
                self._send(MediaData(key=key, data=media.held.get(key, b"")))
            else:
                reading = asyncio.ensure_future(self._read_and_send(key, media.read))
                self._reading.add(reading)
                reading.add_done_callback(self._reading.discard)

    def _find_holder(self, request_id: int, key: bytes) -> Generation | None:
        """Return the request that the engine asks, or if it was left, another with that media."""
        generation = self._generations.get(request_id)
        if generation is not None:
            return generation
        return next((each for each in self._generations.values() if each.holds(key)), None)

    async def _read_and_send(self, key: bytes, read: ReadMedia) -> None:
        try:
            data = await read(key)
        except (KeyError, MilepostError) as error:
            logger.warning("the content of an image cannot be had again: %s", error)
            data = b""
        self._send(MediaData(key=key, data=data))

    def _note_load(self) -> None:
        running = sum(generation.num_running for generation in self._generations.values())
        self.line.note_load(running, self._num_slots)

    @property
    def _num_slots(self) -> int:
        return self.model.num_parallel if self.model is not None else 1

    def _check_ready(self) -> None:
        if self.state == "ready":
            return
        if self.state == "failed":
            raise Unavailable(f"the model cannot be served: {self.failure}")
        if self.state == "restarting":
            raise Unavailable("the engine process ended and is being started again; try again soon")
        raise Unavailable(f"the model is still loading ({self.load_fraction:.0%}); try again soon")

    def _send(self, message: Message) -> None:
        if self._write is not None:
            for part in frame_parts(message):
                self._write(part)


class EngineStream(asyncio.Protocol):
    """Cuts the engine's bytes into messages; `ended` is set when there are no more.

    Its result is the error that made the stream useless, or None for a plain end.
    """

    def __init__(self, take: Callable[[FromEngine], None]) -> None:
        self.take = take  # may be replaced between two messages
        self._reader = engine_reader()
        self.ended: asyncio.Future[MilepostError | None] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    def is_broken(self) -> bool:
        """Whether the stream ended with an error of ours, so that the process must be killed."""
        return not self.ended.done() or self.ended.cancelled() or self.ended.result() is not None

    def data_received(self, data: bytes) -> None:
        """Handle each message that the bytes complete."""
        if self.ended.done():
            return
        try:
            for message in self._reader.feed(data):
                self.take(message)
        except MilepostError as error:
            self.ended.set_result(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The process closed its end, or died."""
        if not self.ended.done():
            self.ended.set_result(None)


def count_waiting(num_choices: Iterable[int], num_slots: int) -> int:
    """Return how many requests wait, of all in the order of arrival, given their choices.

    Each choice takes a slot. The first request that does not fit holds up all after it, as in the
    engine.
    """
    num_waiting = num_taken = 0
    for number in num_choices:
        num_taken += number
        num_waiting += num_taken > num_slots
    return num_waiting

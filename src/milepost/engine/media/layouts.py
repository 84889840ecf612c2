"""How media of each size are laid out in a prompt.

An image is measured in a moment. Of audio libmtmd computes the whole spectrum, even to say how many
tokens it takes, which would hold up everybody else: that is done on the thread that encodes, and
the messages that need it are held back until then.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Sequence
from dataclasses import dataclass

from milepost.engine.media.worker import MediaWorker
from milepost.errors import InvalidRequest, MilepostError, NativeCallFailed
from milepost.libllama.media import LayoutPart, MarkerTokens, MediaSize, Projector
from milepost.lru import LruCache
from milepost.protocol.messages import CountMedia, Generate, MediaRef

MAX_LAYOUTS = 512  # sizes of media whose layout is remembered; arbitrary

logger = logging.getLogger(__name__)

Layout = tuple[LayoutPart, ...] | MilepostError  # an error: it cannot be used


@dataclass(frozen=True, slots=True)
class MediaModel:
    """What a loaded projector is for the engine."""

    projector: Projector
    worker: MediaWorker
    identity: bytes  # all that embeddings depend on, besides the content of a media item
    budget_bytes: int  # of embeddings in memory
    num_ubatch_tokens: int


@dataclass(frozen=True, slots=True)
class Held:
    """A message that waits for layouts."""

    message: Generate | CountMedia
    missing: set[MediaSize]


class MediaLayouts:
    """Owns the layouts that are known, and the messages that wait for others."""

    def __init__(self, model: MediaModel | None) -> None:
        """Without a model every media is refused."""
        self._model = model
        self._layouts: LruCache[MediaSize, Layout] = LruCache(MAX_LAYOUTS)
        self._computing: set[MediaSize] = set()
        self._computed: queue.SimpleQueue[tuple[MediaSize, Layout]] = queue.SimpleQueue()
        self._held: list[Held] = []

    def find_layout(self, ref: MediaRef) -> tuple[LayoutPart, ...]:
        """Return the parts of a media item; raises InvalidRequest when it cannot be used."""
        if self._model is None:
            raise InvalidRequest(
                f"the server was started without a projector, so it takes no {ref.kind}; give one "
                "with --mmproj"
            )
        size = size_of(ref)
        found = self._layouts.get(size)
        if found is None:
            found = self._model.projector.lay_out(size)
            self._layouts.put(size, found)
        if isinstance(found, MilepostError):
            raise found.with_traceback(None)  # or it would grow, and hold every request's frames
        check_fits(found, ref, self._model.num_ubatch_tokens)
        return found

    def hold_back(self, message: Generate | CountMedia) -> bool:
        """Keep a message for `release_held` if its media take long to lay out; False if not."""
        if self._model is None or not self._model.projector.has_audio:
            return False
        media = message.prompt.media if isinstance(message, Generate) else message.media
        sizes = {size_of(ref) for ref in media if ref.kind == "audio"}
        missing = {size for size in sizes if size not in self._layouts}
        if not missing:
            return False
        for size in missing - self._computing:
            self._compute(size, self._model)
        self._held.append(Held(message, missing))
        return True

    def release_held(self) -> list[Generate | CountMedia]:
        """Return the messages that need not wait any more, in their order."""
        if not self._held:
            return []
        for size, layout in _drain(self._computed):
            self._computing.discard(size)
            self._layouts.put(size, layout)
            for held in self._held:
                held.missing.discard(size)
        ready = [held.message for held in self._held if not held.missing]
        self._held = [held for held in self._held if held.missing]
        return ready

    def drop_held(self, request_id: int) -> Generate | None:
        """Forget a request that is held back, and return it; None if it is not here."""
        for held in self._held:
            message = held.message
            if isinstance(message, Generate) and message.request_id == request_id:
                self._held.remove(held)
                return message
        return None

    def _compute(self, size: MediaSize, model: MediaModel) -> None:
        self._computing.add(size)

        def compute() -> None:
            try:
                self._computed.put((size, model.projector.lay_out(size)))
            except MilepostError as error:
                self._computed.put((size, error))
            except Exception as error:  # an edge: who waits for it must be told
                logger.exception("a media item could not be laid out: an error of our own")
                failure = NativeCallFailed(f"a media item could not be laid out: {error}")
                self._computed.put((size, failure))

        model.worker.call(compute)


def check_fits(parts: Sequence[LayoutPart], ref: MediaRef, num_ubatch_tokens: int) -> None:
    """Raise InvalidRequest where a block must be computed at once, and is too large for that."""
    for part in parts:
        if isinstance(part, MarkerTokens) or part.is_causal:
            continue
        if part.num_tokens > num_ubatch_tokens:
            raise InvalidRequest(
                f"the {ref.kind} takes {part.num_tokens} tokens that this model computes at "
                f"once, which is more than a micro-batch of {num_ubatch_tokens}; start the server "
                f"with --ubatch-size {part.num_tokens} or more"
            )


def size_of(ref: MediaRef) -> MediaSize:
    """Return the size that a request says a media item has."""
    return MediaSize(ref.kind, ref.width, ref.height, ref.num_samples)


def _drain(
    source: queue.SimpleQueue[tuple[MediaSize, Layout]],
) -> list[tuple[MediaSize, Layout]]:
    found = []
    while not source.empty():  # nobody else takes from it
        found.append(source.get())
    return found

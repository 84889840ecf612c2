"""Finds out what the media of a request stand for, on threads of its own.

An agent sends all its screenshots with every turn. So what a source was found to stand for is
remembered, by a hash of the source: on later turns nothing is decoded, for the engine has what it
needs of media that it has seen. Should it ask for their bytes all the same, they are decoded then.
Decoded bytes are kept no longer than the request, and of all requests together no more than
`MAX_HELD_BYTES`: what is beyond that is decoded again if the engine asks for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakSet

from milepost.chat.conversation.media_parts import MediaPart
from milepost.config import MediaInputSettings
from milepost.errors import InvalidRequest
from milepost.lru import LruCache
from milepost.media.audio import decode_audio
from milepost.media.decoded import DecodedMedia, MediaFacts
from milepost.media.images import decode_image
from milepost.media.remote import Address, RemoteFetcher, is_public
from milepost.media.sources import MediaSources

T = TypeVar("T")

MAX_REMEMBERED = 16_384  # sources; arbitrary, some 300 bytes each
MAX_HELD_BYTES = 256 << 20  # decoded, of all requests; arbitrary
NUM_FETCHING_THREADS = 4  # they wait for others' servers


class MediaFiles:
    """The media of one request: what they are, and their decoded bytes when they are wanted."""

    def __init__(self, facts: Sequence[MediaFacts], readers: Mapping[bytes, MediaReader]) -> None:
        self.facts = tuple(facts)  # one for each part
        self._readers = readers  # by key

    @property
    def held(self) -> dict[bytes, bytes]:
        """The decoded bytes that are there, by key."""
        found = {key: reader.held for key, reader in self._readers.items()}
        return {key: data for key, data in found.items() if data is not None}

    async def read_content(self, key: bytes) -> bytes:
        """Return decoded bytes, decoding them again if they were not kept.

        Raises KeyError for a key that is none of `facts`.
        """
        return await self._readers[key].read_content()


@dataclass(slots=True, weakref_slot=True, eq=False)
class MediaReader:
    """How to get at the decoded bytes of one image or audio."""

    decode: Callable[[], DecodedMedia] = field(repr=False)  # again, from the file
    executor: ThreadPoolExecutor = field(repr=False)
    held: bytes | None = field(default=None, repr=False)

    async def read_content(self) -> bytes:
        """Return the decoded bytes."""
        if self.held is not None:
            return self.held
        loop = asyncio.get_running_loop()
        return (await loop.run_in_executor(self.executor, self.decode)).data


class MediaLoader:
    """Loads the media of requests; owned by the app, used on its event loop."""

    def __init__(
        self,
        settings: MediaInputSettings,
        max_fetched_bytes: int,  # of one request
        is_allowed: Callable[[Address], bool] = is_public,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        self._settings = settings
        self._max_fetched_bytes = max_fetched_bytes
        self._max_held_bytes = max_held_bytes
        self._holders: WeakSet[MediaReader] = WeakSet()  # those of running requests that hold bytes
        fetcher = RemoteFetcher(
            max_bytes=settings.max_bytes, timeout_s=settings.remote_timeout_s, is_allowed=is_allowed
        )
        self._sources = MediaSources(settings, fetcher)
        # One decodes: more would only take cores from the engine.
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="media")
        self._fetching = ThreadPoolExecutor(NUM_FETCHING_THREADS, thread_name_prefix="fetch")
        self._known: LruCache[bytes, MediaFacts] = LruCache(MAX_REMEMBERED)

    async def load(self, parts: Sequence[MediaPart], audio_rate: int) -> MediaFiles:
        """Return what the media parts of a request stand for, in their order.

        `audio_rate` is in samples per second. Raises InvalidRequest for a part that is not
        allowed, cannot be had, or is no image or audio, and for too many or too large ones.
        """
        if len(parts) > self._settings.max_count:
            raise InvalidRequest(
                f"the request has {len(parts)} images and audios, over the limit of "
                f"{self._settings.max_count}; send fewer, or start the server with a larger "
                "--media-max-count",
                param="messages",
            )
        files = await self._fetch_all(parts)
        facts: list[MediaFacts] = []
        readers: dict[bytes, MediaReader] = {}
        for part in reversed(parts):
            # The latest come first: they are the likeliest to be new, and asked for.
            file = files.get(part.source)
            work = _Decoding(self._sources, self._settings, part, audio_rate, file)
            found, decoded = await self._run(self._decoding, partial(self._look_at, work))
            facts.insert(0, found)
            reader = readers.setdefault(found.key, MediaReader(work.decode, self._decoding))
            if decoded is not None:
                self._hold(reader, decoded.data)
        return MediaFiles(facts, readers)

    def forget(self) -> None:
        """Forget what sources stand for, after what is being decoded now."""
        self._decoding.submit(self._known.clear)

    def close(self) -> None:
        """End the threads after what they do now."""
        self._decoding.shutdown(wait=False, cancel_futures=True)
        self._fetching.shutdown(wait=False, cancel_futures=True)

    async def _fetch_all(self, parts: Sequence[MediaPart]) -> dict[str, bytes]:
        """Return the files that are not in the request by their sources, each fetched once."""
        firsts: dict[str, MediaPart] = {}
        for part in parts:
            if not self._sources.is_inside(part):
                firsts.setdefault(part.source, part)
        amount = _FetchedAmount(self._max_fetched_bytes)
        tasks = [asyncio.ensure_future(self._fetch(part, amount)) for part in firsts.values()]
        try:
            return dict(zip(firsts, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:  # where one failed nobody wants the others
                task.cancel()

    async def _fetch(self, part: MediaPart, amount: _FetchedAmount) -> bytes:
        file = await self._run(self._fetching, partial(self._sources.read_file, part))
        amount.add(len(file), part)
        return file

    def _hold(self, reader: MediaReader, data: bytes) -> None:
        """Keep decoded bytes as long as their request, if there is room for them."""
        num_held = sum(len(each.held or b"") for each in self._holders)
        if reader.held is None and num_held + len(data) <= self._max_held_bytes:
            reader.held = data
            self._holders.add(reader)

    def _look_at(self, work: _Decoding) -> tuple[MediaFacts, DecodedMedia | None]:
        """Return what a source stands for, and its decoded bytes unless it was known."""
        source = work.source_hash()
        known = self._known.get(source)
        if known is not None:
            return known, None
        decoded = work.decode()
        self._known.put(source, decoded.facts)
        return decoded.facts, decoded

    async def _run(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work)


@dataclass(slots=True)
class _FetchedAmount:
    """Counts the bytes of files that one request names without sending them."""

    max_bytes: int
    num_bytes: int = 0

    def add(self, num_bytes: int, part: MediaPart) -> None:
        """Count a file; raises InvalidRequest for one too many."""
        self.num_bytes += num_bytes
        if self.num_bytes > self.max_bytes:
            raise InvalidRequest(
                f"{part.where} is one too many: the files that the request names have over "
                f"{self.max_bytes} bytes together; name fewer, or start the server with a larger "
                "--max-body-mib",
                param="messages",
            )


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One part, ready to be decoded as often as is needed."""

    sources: MediaSources
    settings: MediaInputSettings
    part: MediaPart
    audio_rate: int
    file: bytes | None  # of a part whose file is not in the request

    def source_hash(self) -> bytes:
        """Return a hash of all that decides what is decoded."""
        digest = hashlib.sha256(f"{self.part.kind} {self.audio_rate}\n".encode())
        digest.update(self.part.source.encode() if self.file is None else self.file)
        return digest.digest()

    def decode(self) -> DecodedMedia:
        """Return the decoded part; raises InvalidRequest for what cannot be."""
        file = self.sources.read_file(self.part) if self.file is None else self.file
        where = self.part.where
        if self.part.kind == "audio":
            return decode_audio(file, self.audio_rate, self.settings.max_audio_s, where)
        return decode_image(file, self.settings.max_pixels, where)

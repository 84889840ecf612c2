"""Where the embeddings of media come from, and the prompts that they stand in.

A media item that a prompt has to compute is looked for in memory, then on disk, and only then is
its content asked for and encoded. What the cache holds of a prompt needs neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from milepost.arrays import Tokens
from milepost.cache.disk.embedding_files import Embeddings
from milepost.engine.media.layouts import MediaLayouts, MediaModel, size_of
from milepost.engine.media.prompt import (
    ExpandedPrompt,
    MediaLayout,
    MediaSpan,
    expand_prompt,
    lay_out_media,
)
from milepost.engine.media.worker import Job
from milepost.engine.sequence import Request
from milepost.errors import InvalidRequest, MilepostError, NativeCallFailed
from milepost.libllama.media import MediaSize, count_tokens, describe_size
from milepost.lru import LruCache
from milepost.protocol.counters import Counters
from milepost.protocol.failure import describe_failure
from milepost.protocol.messages import (
    CountMedia,
    Generate,
    MediaCounts,
    MediaData,
    MediaRef,
    Message,
    NeedMedia,
)

# Content that is asked for or waits to be encoded; one media may have more, alone. Arbitrary: it is
# much more than is encoded while one answer to a question comes.
MAX_CONTENT_BYTES = 256 << 20


class MediaFeed:
    """Owns embeddings and the way to them; on the loop's thread."""

    def __init__(
        self, model: MediaModel | None, send: Callable[[Message], None], counters: Counters
    ) -> None:
        """Without a model every media is refused."""
        self._model = model
        self._send = send
        self._layouts = MediaLayouts(model)
        # By the key of their media; never changed.
        self._known: LruCache[bytes, Embeddings] = LruCache(
            max_size=model.budget_bytes if model else 0,
            size_of=lambda _, embeddings: size_of_embeddings(embeddings),
        )
        self._jobs: dict[bytes, Job] = {}
        self._content_bytes = 0  # that the worker holds, of cancelled jobs too
        self._absent: set[bytes] = set()  # not on disk
        self._asked: dict[bytes, int] = {}  # key -> request whose front end was asked
        self._sizes: dict[bytes, MediaSize] = {}  # of what was asked for
        self._gone: dict[bytes, set[int]] = {}  # key -> requests whose content of it is gone
        self._encoded: set[bytes] = set()  # since the last step, and not handed over yet
        self._counters = counters

    # --- prompts -------------------------------------------------------------------------

    def expand(self, message: Generate, tokens: Tokens) -> ExpandedPrompt:
        """Return a prompt with its media; raises InvalidRequest when one cannot be used."""
        return expand_prompt(message, tokens, self._lay_out)

    def hold_back(self, message: Generate) -> bool:
        """Keep a request for `release_held` if its media take long to lay out; False if not."""
        return self._layouts.hold_back(message)

    def release_held(self) -> list[Generate]:
        """Return the requests that need not wait for layouts any more; answer who counts."""
        ready = self._layouts.release_held()
        for message in ready:
            if isinstance(message, CountMedia):
                self._send(self._count(message))
        return [message for message in ready if isinstance(message, Generate)]

    def drop_held(self, request_id: int) -> Generate | None:
        """Forget a request that is held back, and return it; None if it is not here."""
        return self._layouts.drop_held(request_id)

    def answer_count(self, message: CountMedia) -> None:
        """Send how many tokens media items would take, now or once they are laid out."""
        if not self._layouts.hold_back(message):
            self._send(self._count(message))

    def _count(self, message: CountMedia) -> MediaCounts:
        """Return how many tokens media would take, or why they cannot be used."""
        try:
            counts = tuple(count_tokens(self._layouts.find_layout(ref)) for ref in message.media)
        except MilepostError as error:
            return MediaCounts(query_id=message.query_id, failure=describe_failure(error))
        return MediaCounts(query_id=message.query_id, counts=counts)

    def _lay_out(self, ref: MediaRef) -> MediaLayout:
        parts = self._layouts.find_layout(ref)
        return lay_out_media(self._file_key(ref.key), parts)

    def _file_key(self, key: bytes) -> bytes:
        """Return a hash of all that the embeddings of a media item depend on."""
        assert self._model is not None
        return hashlib.sha256(self._model.identity + key, usedforsecurity=False).digest()

    # --- embeddings ----------------------------------------------------------------------

    def take_content(self, message: MediaData) -> None:
        """Have content encoded that was asked for."""
        size = self._sizes.pop(message.key, None)
        request_id = self._asked.pop(message.key, None)
        if self._model is None or size is None or request_id is None:
            return  # nobody needs it any more
        if message.data:
            self._submit(message.key, size, message.data)
        else:  # another request may have it
            self._gone.setdefault(message.key, set()).add(request_id)

    def serve(
        self, needs: Iterable[tuple[Request, Sequence[MediaSpan]]]
    ) -> list[tuple[Request, MilepostError]]:
        """Hand requests the embeddings that they need, and get on with those that are not there.

        Returns the requests that cannot go on, and why.
        """
        if self._model is None:
            return []
        fresh, errors = self._collect()
        failed: dict[int, tuple[Request, MilepostError]] = {}
        missing: dict[bytes, list[Request]] = {}
        refs: dict[bytes, MediaRef] = {}
        for request, spans in needs:
            for span in spans:
                key = span.ref.key
                if key in request.embeddings:
                    continue
                found = self._known.get(key) or fresh.get(key)
                if found is not None and not is_as_laid_out(found, span):
                    errors[key] = NativeCallFailed(
                        "a media item was encoded otherwise than laid out"
                    )
                    found = None
                if found is not None:
                    self._hand_over(request, key, found)
                elif key in errors:
                    failed[request.request_id] = (request, errors[key])
                elif request.request_id in self._gone.get(key, ()):
                    failed[request.request_id] = (request, _content_is_gone(span.ref))
                else:
                    missing.setdefault(key, []).append(request)
                    refs[key] = span.ref
        self._fetch(missing, refs)
        return list(failed.values())

    def clear_embeddings(self) -> None:
        """Forget all embeddings, those on disk too."""
        self._known.clear()
        if self._model is not None:
            self._model.worker.clear_files()

    def close(self) -> None:
        """End the thread."""
        for job in self._jobs.values():
            job.is_cancelled = True
        if self._model is not None and self._model.worker.close():
            self._model.projector.close()

    def _hand_over(self, request: Request, key: bytes, embeddings: Embeddings) -> None:
        request.embeddings[key] = embeddings
        if key in self._encoded:
            self._encoded.discard(key)  # for the first one; for others it is known
            request.num_media_encoded += 1
        else:
            self._counters.num_media_reused += 1

    def _collect(self) -> tuple[dict[bytes, Embeddings], dict[bytes, MilepostError]]:
        """Take what the worker has done; return new embeddings, and errors, by key."""
        assert self._model is not None
        fresh: dict[bytes, Embeddings] = {}
        errors: dict[bytes, MilepostError] = {}
        self._encoded.clear()
        for done in self._model.worker.collect():
            key = done.job.key
            if self._jobs.get(key) is done.job:
                del self._jobs[key]
            self._content_bytes -= len(done.job.data or b"")
            if done.error is not None:
                errors[key] = done.error
            elif done.embeddings is not None:
                fresh[key] = done.embeddings
                self._known.put(key, done.embeddings)
                if done.job.data is not None:
                    self._encoded.add(key)
                    self._counters.num_media_encoded += 1
                    self._counters.media_encode_s += done.elapsed_s
            elif not done.job.is_cancelled:
                self._absent.add(key)
        return fresh, errors

    def _fetch(self, missing: dict[bytes, list[Request]], refs: dict[bytes, MediaRef]) -> None:
        """Read what may be on disk, and ask for the rest; stop what nobody waits for."""
        assert self._model is not None
        self._forget_all_but(missing)
        to_ask: list[bytes] = []
        for key, requests in missing.items():
            if key in self._jobs:
                continue
            if self._model.worker.has_files and key not in self._absent:
                self._submit(key, size_of(refs[key]), None)
            elif self._asked.get(key) not in {request.request_id for request in requests}:
                to_ask.append(key)
        self._ask({key: (missing[key][0].request_id, size_of(refs[key])) for key in to_ask})

    def _ask(self, wanted: dict[bytes, tuple[int, MediaSize]]) -> None:
        """Ask requests for content, by its key, as far as there is room for it; in this order."""
        for key in self._asked.keys() & wanted.keys():
            del self._asked[key], self._sizes[key]  # its request has left
        num_bytes = self._content_bytes + sum(size.num_bytes for size in self._sizes.values())
        asks: dict[int, list[bytes]] = {}
        for key, (request_id, size) in wanted.items():
            if num_bytes > 0 and num_bytes + size.num_bytes > MAX_CONTENT_BYTES:
                break  # none after it either, or it might never have its turn
            num_bytes += size.num_bytes
            self._asked[key], self._sizes[key] = request_id, size
            asks.setdefault(request_id, []).append(key)
        for request_id, keys in asks.items():
            self._send(NeedMedia(request_id=request_id, keys=tuple(keys)))

    def _forget_all_but(self, missing: Iterable[bytes]) -> None:
        wanted = set(missing)
        self._absent &= wanted
        for key in self._gone.keys() - wanted:
            del self._gone[key]
        for key in self._asked.keys() - wanted:
            del self._asked[key], self._sizes[key]
        for key in self._jobs.keys() - wanted:
            self._jobs.pop(key).is_cancelled = True

    def _submit(self, key: bytes, size: MediaSize, data: bytes | None) -> None:
        assert self._model is not None
        job = Job(key, self._file_key(key), size, data)
        self._jobs[key] = job
        self._content_bytes += len(data or b"")
        self._model.worker.submit(job)


def _content_is_gone(ref: MediaRef) -> MilepostError:
    size = size_of(ref)
    return InvalidRequest(
        f"the content of an {describe_size(size)} is gone: it has 0 bytes instead of "
        f"{size.num_bytes}; send it again"
    )


def is_as_laid_out(embeddings: Embeddings, span: MediaSpan) -> bool:
    """Return whether there is an embedding for each token of a span."""
    is_there = span.index < len(embeddings)
    return is_there and len(embeddings[span.index]) == span.block.num_tokens


def size_of_embeddings(embeddings: Embeddings) -> int:
    """Return their bytes."""
    return sum(block.nbytes for block in embeddings)

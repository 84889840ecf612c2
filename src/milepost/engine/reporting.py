"""Makes the cache report of each request, and adds them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from milepost.arrays import Tokens
from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.cache_report import (
    PrefixFacts,
    choose_reason,
    count_twice,
    find_message,
    is_diverging,
)
from milepost.engine.sequence import Request
from milepost.libllama import Vocab
from milepost.protocol.cache import CacheReport, Divergence
from milepost.protocol.counters import Counters, DiskSizes, RamSizes

MAX_EXCERPT_CHARS = 40
MAX_EXCERPT_TOKENS = 48  # most tokens have a character or more
MEDIA_WORD = "[media]"

Record = TypeVar("Record", bound=msgspec.Struct)


class Reporter:
    """Makes reports, and adds them to the totals."""

    def __init__(self, vocab: Vocab, counters: Counters) -> None:
        self._vocab = vocab
        self._counters = counters

    def report(self, request: Request) -> CacheReport:
        """Return the report of a request that has begun, and count it; once per request."""
        facts, prompt = request.facts, request.prompt
        assert facts is not None, "only what has begun ends"
        num_twice = count_twice(facts, len(prompt))
        self._count(facts, num_twice)
        return CacheReport(
            source=facts.source,
            num_reused=facts.num_reused,
            num_restored_bytes=facts.num_bytes,
            restore_ms=1000 * facts.restore_s if facts.num_reused else 0.0,
            num_prefilled=request.num_prefilled,
            num_prefill_chunks=request.num_chunks,
            num_checkpoints=request.num_checkpoints,
            num_known=facts.num_known,
            num_prefilled_twice=num_twice,
            num_failed_restores=facts.num_failed,
            num_refused_sources=facts.num_refused,
            num_media=len(request.message.prompt.media),
            num_media_encoded=request.num_media_encoded,
            divergence=self._describe_divergence(request, facts),
            reason=choose_reason(request.message, prompt, facts),
        )

    def _count(self, facts: PrefixFacts, num_twice: int) -> None:
        counters = self._counters
        counters.num_prefilled_twice_tokens += num_twice
        counters.num_failed_restores += facts.num_failed
        counters.num_restored_bytes += facts.num_bytes
        if facts.source != "none":
            name = f"num_{facts.source}_restores"
            setattr(counters, name, getattr(counters, name) + 1)

    def _describe_divergence(self, request: Request, facts: PrefixFacts) -> Divergence | None:
        if not is_diverging(facts):
            return None
        pos = facts.num_known
        message = find_message(request.message.prompt.boundaries, pos)
        return Divergence(
            pos=pos,
            message_index=message.message_index if message else -1,
            role=message.role if message else "",
            prompt_excerpt=self._excerpt(request.prompt[pos : pos + MAX_EXCERPT_TOKENS]),
            known_excerpt=self._excerpt(
                np.concatenate([part[:MAX_EXCERPT_TOKENS] for part in facts.replaced])
            ),
        )

    def _excerpt(self, tokens: Tokens) -> str:
        """Return the text of tokens; a media item is named."""
        tokens = tokens[:MAX_EXCERPT_TOKENS]
        ends = np.flatnonzero(np.diff(tokens < 0)) + 1
        text = "".join(
            MEDIA_WORD if part[0] < 0 else self._vocab.detokenize(part.tolist(), special=True)
            for part in np.split(tokens, ends)
            if len(part)
        )
        return text[:MAX_EXCERPT_CHARS]


@dataclass(frozen=True, slots=True)
class Totals:
    """What is counted and measured, as it goes over the wire.

    The cache names its own counts and sizes as the protocol does.
    """

    running: Counters
    cache: PrefixCache

    def counters(self) -> Counters:
        """Return the totals so far."""
        return fill_in(self.running, self.cache.counters)

    def ram(self) -> RamSizes:
        """Return what the cache holds in memory."""
        return fill_in(RamSizes(), self.cache.statistics())

    def disk(self) -> DiskSizes:
        """Return what the disk holds."""
        found = self.cache.disk_statistics
        return DiskSizes() if found is None else fill_in(DiskSizes(), found, found.writer)


def fill_in(record: Record, *sources: object) -> Record:
    """Return a copy of a record with all that the sources have under the names of its fields."""
    names = record.__struct_fields__
    values = {n: getattr(source, n) for source in sources for n in names if hasattr(source, n)}
    return msgspec.structs.replace(record, **values)

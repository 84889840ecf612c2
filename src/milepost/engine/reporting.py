"""Makes the cache report of each request, and adds them up."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.cache_report import (
    PrefixFacts,
    Tokens,
    choose_reason,
    count_twice,
    find_message,
    is_diverging,
)
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.media.feed import MediaTotals
from milepost.engine.sequence import Request
from milepost.engine.statistics import Statistics
from milepost.libllama import Vocab
from milepost.protocol.messages import CacheReport, Counters, Divergence

MAX_EXCERPT_CHARS = 40
MAX_EXCERPT_TOKENS = 48  # most tokens have a character or more
MEDIA_WORD = "[media]"


class Reporter:
    """Keeps the totals over the reports that it made."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self.num_twice_tokens = 0
        self.num_kv_cache = 0
        self.num_parked = 0
        self.num_rewind = 0
        self.num_ram = 0
        self.num_disk = 0
        self.num_failed = 0
        self.num_bytes = 0

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
            num_media=len(request.message.media),
            num_media_encoded=request.num_media_encoded,
            divergence=self._describe_divergence(request, facts),
            reason=choose_reason(request.message, prompt, facts),
        )

    def _count(self, facts: PrefixFacts, num_twice: int) -> None:
        self.num_twice_tokens += num_twice
        self.num_kv_cache += facts.source == "kv_cache"
        self.num_parked += facts.source == "parked"
        self.num_rewind += facts.source == "rewind"
        self.num_ram += facts.source == "ram"
        self.num_disk += facts.source == "disk"
        self.num_failed += facts.num_failed
        self.num_bytes += facts.num_bytes

    def _describe_divergence(self, request: Request, facts: PrefixFacts) -> Divergence | None:
        if not is_diverging(facts):
            return None
        pos = facts.num_known
        message = find_message(request.message.boundaries, pos)
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
        """Return the text of tokens; a media is named."""
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
    """All who count something."""

    statistics: Statistics
    reporter: Reporter
    checkpointer: Checkpointer
    cache: PrefixCache
    media: MediaTotals

    def counters(self) -> Counters:
        """Return the totals as they go over the wire."""
        reporter, evictions = self.reporter, self.cache.counters
        return msgspec.structs.replace(
            self.statistics.counters(),
            **self._disk_counters(),
            num_prefilled_twice_tokens=reporter.num_twice_tokens,
            num_kv_cache_restores=reporter.num_kv_cache,
            num_parked_restores=reporter.num_parked,
            num_rewind_restores=reporter.num_rewind,
            num_ram_restores=reporter.num_ram,
            num_disk_restores=reporter.num_disk,
            num_failed_restores=reporter.num_failed,
            num_restored_bytes=reporter.num_bytes,
            num_checkpoints=self.checkpointer.num_checkpoints,
            num_saved_bytes=self.checkpointer.num_saved_bytes,
            num_evicted_checkpoints=evictions.num_evicted_checkpoints,
            num_evicted_segments=evictions.num_evicted_segments,
            num_thinned_checkpoints=evictions.num_thinned_checkpoints,
            num_media_encoded=self.media.num_encoded,
            num_media_reused=self.media.num_reused,
            media_encode_s=self.media.encode_s,
        )

    def _disk_counters(self) -> dict[str, int]:
        found = self.cache.disk_statistics
        if found is None:
            return {}
        return {
            "num_disk_blobs": found.num_blobs,
            "num_disk_bytes": found.num_bytes,
            "num_disk_budget_bytes": found.budget_bytes,
            "num_disk_written_bytes": found.writer.written_bytes,
            "num_disk_written_today_bytes": found.writer.written_today_bytes,
            "num_disk_read_bytes": found.read_bytes,
            "num_disk_lost": found.num_lost,
            "num_disk_refused": found.writer.num_refused,
        }

"""A request in the engine, and its sequences: records that the loop works on.

A sequence is one continuation of a prompt. `tokens` is what its context should hold, sampled tokens
included; what it does hold is in its slot. Whatever is missing there is computed next: a long
stretch is a prefill, a single sampled token is a decode step. A sequence that lost its cells is so
continued like any other, by computing what is missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from milepost.arrays import Logits, Tokens
from milepost.cache.checkpoint import CheckpointKind
from milepost.cache.disk.embedding_files import Embeddings
from milepost.engine.cache_report import PrefixFacts
from milepost.engine.detokenizer import Detokenizer
from milepost.engine.media.prompt import MediaSpan
from milepost.engine.reasoning_budget import ReasoningBudget
from milepost.engine.sampling import Sampler
from milepost.engine.stop_strings import StopMatcher
from milepost.protocol.messages import Generate, TokenLogprob

SequenceState = Literal["forking", "running", "preempted", "finished"]
# Media items of a sequence that are made ready while it computes what is before them; more would
# pile up in memory, where hundreds of them stand in a prompt. Arbitrary.
NUM_MEDIA_AHEAD = 4


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a prompt, bound to a slot while it is not finished."""

    request: Request
    index: int
    slot_id: int
    sampler: Sampler
    detokenizer: Detokenizer
    stop: StopMatcher
    budget: ReasoningBudget | None
    tokens: Tokens  # grows by one per sampled token; only [:num_tokens] is used
    num_tokens: int
    state: SequenceState
    num_decoded: int = 0  # sampled tokens, an end-of-generation token included
    decode_started_s: float = 0.0
    unsent_tokens: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def known_tokens(self) -> Tokens:
        """The prompt and what was sampled; a view."""
        return self.tokens[: self.num_tokens]

    def append(self, token: int) -> None:
        """Add a sampled token."""
        if self.num_tokens == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros(len(self.tokens) + 64, np.int32)])
        self.tokens[self.num_tokens] = token
        self.num_tokens += 1


@dataclass(slots=True, eq=False)
class Request:
    """A `Generate` message on its way; `sequences` is empty while it waits for slots."""

    message: Generate  # its boundaries are positions in `prompt`
    prompt: Tokens  # media items as in engine.media.keys
    received_s: float
    spans: tuple[MediaSpan, ...] = ()  # of media in the prompt, in rising order
    embeddings: dict[bytes, Embeddings] = field(default_factory=dict)  # at hand, by key of media
    num_media_encoded: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    facts: PrefixFacts | None = None  # what was known when it began
    known_logits: Logits | None = None  # after the prompt, when none of it is to be computed
    is_prefetched: bool = False  # what it needs from disk is being read while it waits
    num_cached: int = 0  # prompt tokens that were not computed again
    num_prefilled: int = 0  # prompt tokens that were, counted for each time
    num_chunks: int = 0  # batches that held some of them
    num_checkpoints: int = 0  # states kept on the way
    cuts: list[int] = field(default_factory=list)  # ascending positions where a batch must end
    checkpoints: dict[int, CheckpointKind] = field(default_factory=dict)  # by position, to come
    prefill_started_s: float = 0.0
    prefill_ended_s: float = 0.0

    @property
    def request_id(self) -> int:
        """The front end's number for it."""
        return self.message.request_id

    def end_of_chunk(self, pos: int, end: int) -> int:
        """Return where a batch that begins at `pos` and would reach `end` must end."""
        index = bisect_right(self.cuts, pos)
        return min(self.cuts[index], end) if index < len(self.cuts) else end

    def span_at(self, pos: int) -> MediaSpan | None:
        """Return the media item that begins at a position of the prompt."""
        index = bisect_left(self.spans, pos, key=lambda span: span.start)
        if index == len(self.spans) or self.spans[index].start != pos:
            return None
        return self.spans[index]

    def next_spans(self, pos: int) -> list[MediaSpan]:
        """Return the blocks of the next few media items at and after a position."""
        keys: set[bytes] = set()
        found: list[MediaSpan] = []
        for span in self.spans[bisect_left(self.spans, pos, key=lambda span: span.start) :]:
            keys.add(span.ref.key)
            if len(keys) > NUM_MEDIA_AHEAD:
                break
            found.append(span)
        return found

    def note_computed(self, start: int, end: int) -> None:
        """Count the part of [start, end) that belongs to the prompt."""
        num_tokens = min(end, len(self.prompt)) - start
        if num_tokens > 0:
            self.num_prefilled += num_tokens
            self.num_chunks += 1

    def add_checkpoint(self, pos: int, kind: CheckpointKind) -> None:
        """Let the prefill stop at one more position, to keep the state there."""
        if pos not in self.checkpoints:
            self.checkpoints[pos] = kind
            insort(self.cuts, pos)

    @property
    def is_prefilling(self) -> bool:
        """Whether the prompt is not computed yet."""
        return self.prefill_ended_s == 0.0

    @property
    def is_finished(self) -> bool:
        """Whether all of its sequences ended."""
        return bool(self.sequences) and all(
            sequence.state == "finished" for sequence in self.sequences
        )

"""Find out what the memory of a loaded model can do, by trying it.

Run once at load, with a few dozen tokens. Nothing is concluded from the name of an architecture:
a model whose sequences can be cut, taken apart or restored is one that has just done so here. What
fails is not used, is logged, and leaves the model slower but correct.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Logits
from milepost.errors import NativeCallFailed
from milepost.kinds import MemoryKind
from milepost.libllama import Batch, Context
from milepost.libllama.media import EmbeddingBlock
from milepost.libllama.media_batch import MediaBatch
from milepost.libllama.state import StateIO

# Enough for a state that depends on its history; a 30B model needs about 2 s for them on a CPU.
NUM_FIRST, NUM_SECOND, NUM_LAST = 24, 12, 8
MEDIA_AT = 16  # in the first of them, where a media item stands if there is a projector
# Restored into the same layout logits are equal to the bit, but for a window, whose cells land
# elsewhere: 3e-5 of the largest logit (measured). A header taken for values gave 1e-3 and more.
TOLERANCE = 2e-4  # of the largest logit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """What the context's memory can do."""

    kind: MemoryKind
    can_cut: bool  # positions at the end of a sequence can be removed, however many
    has_segments: bool  # attention cells can be kept per range of positions
    has_states: bool  # going on needs a state kept at exactly that position
    can_restore: bool  # a sequence that was read can be written back
    state_bytes: int  # of the state at one position; 0 without has_states
    segment_bytes_per_token: float  # 0 without has_segments

    def describe_layout(self) -> str:
        """Return what states are made of, for the fingerprint of those on disk."""
        parts = [name for name in ("segments", "states") if getattr(self, f"has_{name}")]
        return " ".join([self.kind, *parts])

    def describe(self) -> str:
        """Return one line for the log and the start-up block."""
        if not self.can_restore:
            return f"{self.kind}, states cannot be restored: kept in the KV cache only"
        parts: list[str] = [self.kind]
        if self.has_segments:
            parts.append(f"{self.segment_bytes_per_token / 1024:,.1f} KiB per token")
        if self.has_states:
            parts.append(f"{self.state_bytes / 2**20:,.2f} MiB per checkpoint")
        return ", ".join(parts)


class MemoryProbe:
    """Tries things on an empty context, and leaves it empty."""

    def __init__(
        self,
        context: Context,
        states: StateIO,
        *,
        swa_full: bool,
        media: EmbeddingBlock | None = None,
    ) -> None:
        """Uses the sequence id 0; `states` has its own.

        With `media`, random embeddings at its positions stand between the tokens: the cells of an
        image may hold more than those of text, such as its rows and columns.
        """
        self._context = context
        self._states = states
        self._swa_full = swa_full
        self._media = media
        self._batch = Batch(context.model.library, NUM_FIRST)
        total = NUM_FIRST + NUM_SECOND + NUM_LAST
        rng = np.random.default_rng(1)  # any text will do
        self._tokens = rng.integers(0, context.model.vocab.num_tokens, total).astype(np.int32)
        if media is not None:
            shape = media.num_tokens, context.model.num_embd_input
            self._embeddings = rng.standard_normal(shape, dtype=np.float32)

    def run(self) -> MemoryTraits:
        """Try everything and return what works."""
        kind = self._kind()
        expected = self._compute_all()
        layout = self._states.learn_layout(0)
        has_parts = layout == "two_parts" or (layout == "one_part" and kind == "full")
        has_segments = has_parts and self._restores_from_parts(expected, kind)
        can_restore = has_segments or self._restores_as_a_whole(expected)
        if not has_segments and kind != "recurrent":
            logger.warning("the states of this %s model cannot be taken apart", kind)
        if not can_restore:
            logger.warning("the states of this %s model cannot be restored", kind)
        has_states = kind != "full" or not has_segments
        traits = MemoryTraits(
            kind=kind,
            can_cut=self._can_cut(kind),
            has_segments=has_segments,
            has_states=has_states,
            can_restore=can_restore,
            state_bytes=self._state_bytes(has_segments) if has_states else 0,
            segment_bytes_per_token=self._bytes_per_token() if has_segments else 0.0,
        )
        self._context.clear_sequences()
        return traits

    def _kind(self) -> MemoryKind:
        model = self._context.model
        if model.is_hybrid:
            return "hybrid"
        if model.is_recurrent:
            return "recurrent"
        return "window" if model.num_window_tokens > 0 else "full"

    def _compute_all(self) -> Logits:
        """Compute all tokens in three batches; return the last logits."""
        self._context.clear_sequences()
        self._compute(0, NUM_FIRST)
        self._compute(NUM_FIRST, NUM_FIRST + NUM_SECOND)
        return self._compute_last()

    def _compute_last(self) -> Logits:
        return self._compute(NUM_FIRST + NUM_SECOND, len(self._tokens))

    def _compute(self, start: int, end: int) -> Logits:
        if self._media is not None and start < MEDIA_AT < end:
            self._compute_text(start, MEDIA_AT, start)
            self._compute_media(self._media)
            return self._compute_text(MEDIA_AT, end, self._pos(MEDIA_AT))
        return self._compute_text(start, end, self._pos(start))

    def _compute_text(self, start: int, end: int, pos: int) -> Logits:
        self._batch.clear_rows()
        row = self._batch.add_tokens(self._tokens[start:end], pos, 0, wants_last=True)
        self._context.decode(self._batch)
        return self._context.logits(row).copy()

    def _compute_media(self, media: EmbeddingBlock) -> None:
        batch = MediaBatch(self._context.model.library, self._embeddings, media.positions(MEDIA_AT))
        batch.fill(0, wants_last=False)
        self._context.decode_media(batch, is_causal=media.is_causal)

    def _pos(self, index: int) -> int:
        """Return the position of a token."""
        has_media = self._media is not None and index >= MEDIA_AT
        return index + (self._media.num_positions if has_media and self._media else 0)

    def _compute_before_last(self) -> None:
        self._context.clear_sequences()
        self._compute(0, NUM_FIRST)
        self._compute(NUM_FIRST, NUM_FIRST + NUM_SECOND)

    def _can_cut(self, kind: MemoryKind) -> bool:
        """Cut the last batch off and compute it again."""
        expected = self._compute_all()
        if not self._context.remove(0, self._pos(NUM_FIRST + NUM_SECOND)):
            return False
        # A small window cache can be cut, but may have lost the cells that come into view.
        keeps_window = kind != "window" or self._swa_full
        return keeps_window and is_same(self._compute_last(), expected)

    def _restores_from_parts(self, expected: Logits, kind: MemoryKind) -> bool:
        middle, end = self._pos(NUM_FIRST), self._pos(NUM_FIRST + NUM_SECOND)
        try:
            self._compute_before_last()
            first = self._states.read_segment(0, 0, middle)
            second = self._states.read_segment(0, middle, end)
            partial = None if kind == "full" else self._states.read_partial(0)
            self._context.clear_sequences()
            self._states.write_segment(0, first, 0, middle)
            self._states.write_segment(0, second, middle, end)
            if partial is not None:
                self._states.write_partial(0, partial)
            return is_same(self._compute_last(), expected)
        except NativeCallFailed as error:
            logger.debug("restoring from parts failed: %s", error)
            return False

    def _restores_as_a_whole(self, expected: Logits) -> bool:
        try:
            self._compute_before_last()
            whole = self._states.read_whole(0)
            self._context.clear_sequences()
            self._states.write_whole(0, whole)
            return is_same(self._compute_last(), expected)
        except NativeCallFailed as error:
            logger.debug("restoring a whole state failed: %s", error)
            return False

    def _state_bytes(self, has_segments: bool) -> int:
        self._compute_all()
        state = self._states.read_partial(0) if has_segments else self._states.read_whole(0)
        return len(state)

    def _bytes_per_token(self) -> float:
        self._compute_all()
        num_cells = len(self._tokens) + (self._media.num_tokens if self._media else 0)
        return len(self._states.read_segment(0, 0, self._pos(len(self._tokens)))) / num_cells


def is_same(found: Logits, expected: Logits) -> bool:
    """Compare logits of the same position, computed in the same micro-batches."""
    peak = float(np.abs(expected).max())
    return bool(np.all(np.isfinite(found))) and bool(
        np.allclose(found, expected, rtol=0, atol=TOLERANCE * peak)
    )

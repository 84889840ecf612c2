"""Greedy continuations without any cache: slow and obviously right.

One context with nothing in it but the prompt, which is computed in the pieces that are named. In
the same pieces a model computes nearly the same numbers: whatever else an answer shows does not
come from how a prefill was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tests.media_content import Content

from milepost.engine.media.prompt import MediaSpan
from milepost.libllama import Batch, Context
from milepost.libllama.media import Projector
from milepost.libllama.media_batch import MediaBatch


class GreedyOracle:
    """Computes every prompt from its first token; the context is its own."""

    def __init__(self, context: Context, images: MediaOracle | None = None) -> None:
        self._context = context
        self._images = images
        self._batch = Batch(context.model.library, context.num_ubatch_tokens)

    def logprobs(
        self,
        prompt: Sequence[int],
        ends: Sequence[int],
        answer: Sequence[int],
        spans: Sequence[MediaSpan] = (),
    ) -> list[np.ndarray]:
        """Return for each token of an answer the logprobs that it was chosen from.

        Images stand in `spans` of the prompt, whatever it says there.
        `ends` are the positions where the micro-batches of the prompt end; the answer is taken as
        it is, so that all of its places can be compared even where two tokens are equally likely.
        """
        self._context.clear_sequences()
        start = row = 0
        for end in sorted({*ends, len(prompt)}):
            inside = [span for span in spans if span.start <= start < span.end]
            pos = start - sum(
                span.block.num_tokens - span.block.num_positions
                for span in spans
                if span.end <= start
            )
            if inside:
                row = self._compute_image(inside[0], start, end, pos)
            else:
                row = self._compute(prompt[start:end], pos)
            start = end
        found = [log_softmax(self._context.logits(row))]
        first = len(prompt) - sum(s.block.num_tokens - s.block.num_positions for s in spans)
        for pos, token in enumerate(answer[:-1], first):
            row = self._compute([token], pos)
            found.append(log_softmax(self._context.logits(row)))
        return found

    def _compute_image(self, span: MediaSpan, start: int, end: int, pos: int) -> int:
        """Compute the tokens [start, end) of a prompt, all of one image."""
        assert self._images is not None
        assert end <= span.end, "an image ends a batch"
        part = slice(start - span.start, end - span.start)
        pos -= part.start if start > span.start else 0  # the image itself is before `start`
        batch = MediaBatch(
            self._context.model.library,
            self._images.embeddings(span)[part],
            span.block.positions(pos)[:, part],
        )
        batch.fill(0, wants_last=True)
        self._context.decode_media(batch, is_causal=span.block.is_causal)
        return batch.num_tokens - 1

    def _compute(self, tokens: Sequence[int], start: int) -> int:
        row = 0
        for first in range(0, len(tokens), self._batch.capacity):
            part = tokens[first : first + self._batch.capacity]
            self._batch.clear_rows()
            row = self._batch.add_tokens(part, start + first, 0, wants_last=True)
            self._context.decode(self._batch)
        return row


class MediaOracle:
    """Encodes images and audio by itself."""

    def __init__(self, projector: Projector, images: Sequence[Content]) -> None:
        self._projector = projector
        self._images = {image.ref().key: image for image in images}
        self._encoded: dict[bytes, list[np.ndarray]] = {}

    def embeddings(self, span: MediaSpan) -> np.ndarray:
        """Return the embeddings of a piece of an image."""
        image = self._images[span.ref.key]
        if span.ref.key not in self._encoded:
            self._encoded[span.ref.key] = self._projector.encode(image.size, image.data)
        return self._encoded[span.ref.key][span.index]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities, float64."""
    peak = float(logits.max())
    return logits.astype(np.float64) - peak - math.log(float(np.exp(logits - peak).sum()))

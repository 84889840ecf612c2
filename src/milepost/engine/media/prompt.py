"""Puts what media become between the tokens of a prompt, and moves its boundaries. Pure.

text tokens      t0 t1 | t2 ...                    `Generate.tokens`, an image stands before t2
keys of a prompt t0 t1 b0 b1 -1 -2 -3 e0 t2 ...    b, e: marks of begin and end, as text
                             └─ span ─┘
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from milepost.arrays import Tokens
from milepost.engine.media.keys import BlockSize, make_keys
from milepost.errors import InvalidRequest
from milepost.libllama.media import EmbeddingBlock, LayoutPart, count_tokens
from milepost.protocol.messages import Boundary, Generate, MediaRef

KEY_BYTES = 32
MAX_MEDIA = 4096  # of a prompt; arbitrary: hundreds of screenshots are a long day


@dataclass(frozen=True, slots=True, eq=False)
class MediaSpan:
    """Where an embedding block of a media item stands in a prompt."""

    start: int  # [start, end) in the keys of the prompt
    end: int
    ref: MediaRef
    index: int  # of the block, among those of its media item
    block: EmbeddingBlock


@dataclass(frozen=True, slots=True, eq=False)
class MediaLayout:
    """What one media becomes, wherever it stands."""

    parts: tuple[LayoutPart, ...]
    keys: tuple[Tokens, ...]  # of each part; those of text are tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that it takes in a prompt."""
        return count_tokens(self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class ExpandedPrompt:
    """A prompt with its media."""

    message: Generate  # with its boundaries where they are in `keys`
    keys: Tokens  # read-only
    spans: tuple[MediaSpan, ...]  # in rising order


def lay_out_media(content: bytes, parts: tuple[LayoutPart, ...]) -> MediaLayout:
    """Return the layout of a media item; `content` is all that its embeddings depend on."""
    sizes = [
        BlockSize(p.num_tokens, p.num_positions) for p in parts if isinstance(p, EmbeddingBlock)
    ]
    keys = iter(make_keys(content, sizes))
    return MediaLayout(
        parts,
        tuple(
            next(keys) if isinstance(part, EmbeddingBlock) else np.array(part.tokens, np.int32)
            for part in parts
        ),
    )


def expand_prompt(
    message: Generate, tokens: Tokens, lay_out: Callable[[MediaRef], MediaLayout]
) -> ExpandedPrompt:
    """Return a prompt with its media in it; raises InvalidRequest where they cannot stand so.

    A boundary at the place of a media item may stand on either side of it, as its `num_media` says.
    """
    if not message.prompt.media:
        return ExpandedPrompt(message, tokens, ())
    check_refs(message.prompt.media, len(tokens))
    check_boundaries(message.prompt.boundaries, message.prompt.media)
    parts: list[Tokens] = []
    spans: list[MediaSpan] = []
    added = [0]  # by the first media, the first two, ...
    start = 0
    for ref in message.prompt.media:
        parts.append(tokens[start : ref.pos])
        start = ref.pos
        layout = lay_out(ref)
        spans += _find_spans(layout, ref, ref.pos + added[-1])
        parts += layout.keys
        added.append(added[-1] + layout.num_tokens)
    keys = np.concatenate([*parts, tokens[start:]]).astype(np.int32)
    keys.flags.writeable = False
    boundaries = tuple(
        msgspec.structs.replace(found, pos=found.pos + added[found.num_media])
        for found in message.prompt.boundaries
    )
    prompt = msgspec.structs.replace(message.prompt, boundaries=boundaries)
    return ExpandedPrompt(msgspec.structs.replace(message, prompt=prompt), keys, tuple(spans))


def check_refs(media: Sequence[MediaRef], num_tokens: int) -> None:
    """Raise InvalidRequest unless media stand in rising order in or after a text."""
    if len(media) > MAX_MEDIA:
        raise InvalidRequest(f"the prompt has {len(media)} media; at most {MAX_MEDIA} are taken")
    last = 0
    for ref in media:
        if not last <= ref.pos <= num_tokens:
            raise InvalidRequest(
                f"a media item stands at {ref.pos} of {num_tokens} tokens, after one at {last}; "
                "they must be in rising order, and none after the end"
            )
        last = ref.pos
        if len(ref.key) != KEY_BYTES:
            raise InvalidRequest(
                f"the key of a media item has {len(ref.key)} bytes, not {KEY_BYTES}"
            )


def check_boundaries(boundaries: Sequence[Boundary], media: Sequence[MediaRef]) -> None:
    """Raise InvalidRequest for a boundary on the wrong side of media that stand elsewhere."""
    places = [ref.pos for ref in media]
    for found in boundaries:
        least, most = bisect_left(places, found.pos), bisect_right(places, found.pos)
        if not least <= found.num_media <= most:
            raise InvalidRequest(
                f"a boundary at token {found.pos} has {found.num_media} media before it, but there "
                f"are {least} to {most}"
            )


def _find_spans(layout: MediaLayout, ref: MediaRef, start: int) -> list[MediaSpan]:
    spans: list[MediaSpan] = []
    for part, keys in zip(layout.parts, layout.keys, strict=True):
        end = start + len(keys)
        if isinstance(part, EmbeddingBlock):
            spans.append(MediaSpan(start, end, ref, len(spans), part))
        start = end
    return spans

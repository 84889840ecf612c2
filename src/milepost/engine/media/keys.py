"""Keys that stand for media in a prompt: negative int32 numbers, made from the hash of its content.

A key says besides whether a block begins with it, and whether the position of what follows is
further on by it. So any array of keys tells where its blocks begin, and at which position of the
context each of its items stands: wherever a history comes from (a slot, the tree, a file), nothing
else needs to be kept with it. Pure.

    31         30          29          28                          0
    ┌──────────┬───────────┬───────────┬───────────────────────────┐
    │ 1: media │ IS_START  │ ADVANCES  │ bits of the hash, never 0 │
    └──────────┴───────────┴───────────┴───────────────────────────┘

With M-RoPE an image takes fewer positions than tokens: only its last keys advance. Within a block
positions are those of the image, and no prompt is ever taken up again there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milepost.arrays import Tokens
from milepost.errors import NotSupported

IS_MEDIA = -(1 << 31)  # the sign
IS_START = 1 << 30
ADVANCES = 1 << 29
HASH_BITS = ADVANCES - 1


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Tokens of a block, and by how many positions what follows is further on."""

    num_tokens: int
    num_positions: int


def make_keys(content: bytes, blocks: Sequence[BlockSize]) -> list[Tokens]:
    """Return the keys of each block of a media item; `content` is all that they depend on.

    Raises NotSupported for a block that takes more positions than tokens.
    """
    num_tokens = sum(block.num_tokens for block in blocks)
    stream = hashlib.shake_256(content, usedforsecurity=False).digest(4 * num_tokens)
    hashes = np.maximum(np.frombuffer(stream, "<i4") & HASH_BITS, 1).astype(np.int32)
    keys, start = [], 0
    for block in blocks:
        num_still = block.num_tokens - block.num_positions
        if num_still < 0 or block.num_tokens == 0:
            raise NotSupported(
                f"a media item of {block.num_tokens} tokens takes {block.num_positions} positions"
            )
        part = hashes[start : start + block.num_tokens] | IS_MEDIA
        part[num_still:] |= ADVANCES
        part[0] |= IS_START
        keys.append(part)
        start += block.num_tokens
    return keys


def count_positions(keys: Tokens) -> int:
    """Return the position after a history that ends outside of blocks."""
    return len(keys) - int(np.count_nonzero((keys & (IS_MEDIA | ADVANCES)) == IS_MEDIA))


def is_inside(keys: Tokens, pos: int) -> bool:
    """Return whether a block goes on at an index of the keys; False at their end.

    A negative number without bits of a hash stands for no token at all.
    """
    if pos >= len(keys):
        return False
    key = int(keys[pos])
    return key < 0 and not key & IS_START and bool(key & HASH_BITS)


def floor_to_block(keys: Tokens, pos: int) -> int:
    """Return an index, or the beginning of the block that it lies in; 0 where none begins."""
    while pos > 0 and is_inside(keys, pos):
        pos -= 1
    return pos


def holds_up_to(keys: Tokens, pos_max: int) -> bool:
    """Return whether the last position of a sequence can be that of a history that is not empty.

    That of an image with M-RoPE is where it begins, however many positions it takes.
    """
    last = floor_to_block(keys, len(keys) - 1)
    return count_positions(keys[:last]) <= pos_max < count_positions(keys)

"""An array of keys tells by itself where media begin and where everything stands."""

from __future__ import annotations

import numpy as np
import pytest

from milepost.engine.media.keys import (
    BlockSize,
    count_positions,
    floor_to_block,
    holds_up_to,
    is_inside,
    make_keys,
)
from milepost.errors import NotSupported

LOWEST = np.iinfo(np.int32).min  # stands for "no token" elsewhere


def history(*blocks: BlockSize) -> np.ndarray:
    """Return three tokens, a media of these blocks, and two tokens."""
    return np.concatenate(
        [np.array([5, 6, 7], np.int32), *make_keys(b"one", blocks), np.array([8, 9], np.int32)]
    )


def test_keys_are_negative_and_go_with_the_content() -> None:
    blocks = [BlockSize(24, 6), BlockSize(4, 4)]
    one, other = np.concatenate(make_keys(b"one", blocks)), np.concatenate(make_keys(b"x", blocks))
    assert one.dtype == np.int32
    assert one.max() < 0
    assert one.min() > LOWEST
    assert np.array_equal(one, np.concatenate(make_keys(b"one", blocks)))
    assert not np.any(one == other)


def test_positions_go_on_as_the_pieces_say() -> None:
    keys = history(BlockSize(24, 6), BlockSize(4, 4))
    found = [count_positions(keys[:end]) for end in (0, 3, 3 + 24, 3 + 24 + 4, len(keys))]
    assert found == [0, 3, 9, 13, 15]


def test_places_inside_a_piece_are_rounded_to_its_begin() -> None:
    keys = history(BlockSize(5, 2), BlockSize(1, 1), BlockSize(4, 4))
    inside = [pos for pos in range(len(keys) + 1) if is_inside(keys, pos)]
    assert inside == [4, 5, 6, 7, 10, 11, 12]
    assert [floor_to_block(keys, pos) for pos in (2, 3, 4, 7, 8, 9, 10, 12, 13, 15)] == [
        *(2, 3, 3, 3, 8, 9, 9, 9, 13, 15),
    ]


def test_what_stands_for_no_token_is_no_media() -> None:
    assert not is_inside(np.array([5, LOWEST], np.int32), 1)


def test_the_last_position_of_an_image_may_be_its_begin() -> None:
    keys = history(BlockSize(24, 6))
    assert holds_up_to(keys, 10)
    assert not holds_up_to(keys, 9)
    assert not holds_up_to(keys, 11)
    behind_image = keys[:27]
    assert [pos for pos in range(12) if holds_up_to(behind_image, pos)] == [3, 4, 5, 6, 7, 8]


def test_a_piece_that_takes_more_positions_than_tokens_is_refused() -> None:
    with pytest.raises(NotSupported, match="3 tokens takes 4 positions"):
        make_keys(b"", [BlockSize(3, 4)])


def test_a_history_that_begins_within_a_piece_begins_at_its_begin() -> None:
    keys = history(BlockSize(5, 5))[4:8]
    assert floor_to_block(keys, 2) == 0
    assert not holds_up_to(keys, -1)

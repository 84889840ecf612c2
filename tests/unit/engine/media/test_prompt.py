"""Media stand between the tokens where the front end wants them, and boundaries move along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.requests import make_generate

from milepost.engine.media.prompt import MediaLayout, expand_prompt, lay_out_media
from milepost.errors import InvalidRequest
from milepost.libllama.media import EmbeddingBlock, MarkerTokens
from milepost.protocol.messages import Boundary, Generate, MediaRef

TOKENS = np.arange(10, 16, dtype=np.int32)
NO_OFFSETS = np.zeros((1, 0), np.int32)


def block(num_tokens: int, num_positions: int) -> EmbeddingBlock:
    return EmbeddingBlock(num_tokens, num_positions, NO_OFFSETS, NO_OFFSETS, is_causal=True)


def lay_out(ref: MediaRef) -> MediaLayout:
    """Return a layout of two blocks between marks: eight tokens, six positions."""
    parts = (MarkerTokens((1, 2)), block(3, 1), block(2, 2), MarkerTokens((3,)))
    return lay_out_media(ref.key, parts)


def image(pos: int, name: str = "a") -> MediaRef:
    return MediaRef(pos=pos, kind="image", key=name.encode() * 32, width=2, height=2)


def message(*media: MediaRef, **fields: Any) -> Generate:
    return make_generate(1, TOKENS, media=media, **fields)


def test_a_prompt_without_media_is_left_alone() -> None:
    asked = message(boundaries=(Boundary(3, "prompt_end"),))
    expanded = expand_prompt(asked, TOKENS, lay_out)
    assert expanded.message is asked
    assert expanded.keys is TOKENS
    assert expanded.spans == ()


def test_media_stand_before_their_token() -> None:
    expanded = expand_prompt(message(image(2), image(6, "b")), TOKENS, lay_out)
    keys = expanded.keys
    signs = np.where(keys < 0, -1, keys).tolist()
    marked = [1, 2, -1, -1, -1, -1, -1, 3]
    assert signs == [10, 11, *marked, 12, 13, 14, 15, *marked]
    assert [(span.start, span.end, span.index) for span in expanded.spans] == [
        *((4, 7, 0), (7, 9, 1), (16, 19, 0), (19, 21, 1)),
    ]
    assert not np.any(keys[4:9] == keys[16:21])


def test_the_same_media_has_the_same_keys_everywhere() -> None:
    keys = expand_prompt(message(image(0), image(0), image(3)), TOKENS, lay_out).keys
    assert np.array_equal(keys[:8], keys[8:16])
    assert np.array_equal(keys[:8], keys[19:27])


def test_boundaries_count_the_media_before_them() -> None:
    places = ((1, 0), (2, 0), (2, 1), (2, 2), (3, 2), (6, 2), (6, 3))
    boundaries = tuple(Boundary(pos, "message_end", pos, "user", count) for pos, count in places)
    asked = message(image(2), image(2), image(6), boundaries=boundaries)
    expanded = expand_prompt(asked, TOKENS, lay_out)
    moved = [found.pos for found in expanded.message.prompt.boundaries]
    assert moved == [1, 2, 2 + 8, 2 + 16, 3 + 16, 6 + 16, 6 + 24]
    assert [found.message_index for found in expanded.message.prompt.boundaries] == [
        1,
        2,
        2,
        2,
        3,
        6,
        6,
    ]


@pytest.mark.parametrize(("pos", "count"), [(1, 1), (2, 3), (3, 1), (3, -1)])
def test_boundaries_on_the_wrong_side_of_media_are_refused(pos: int, count: int) -> None:
    asked = message(image(2), image(2), boundaries=(Boundary(pos, "date", num_media=count),))
    with pytest.raises(InvalidRequest, match=f"a boundary at token {pos} has {count} media"):
        expand_prompt(asked, TOKENS, lay_out)


@pytest.mark.parametrize("places", [(3, 2), (-1,), (7,)])
def test_places_outside_of_the_text_or_out_of_order_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="rising order"):
        expand_prompt(message(*map(image, places)), TOKENS, lay_out)


def test_too_many_media_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 5000 media"):
        expand_prompt(message(*[image(0)] * 5000), TOKENS, lay_out)

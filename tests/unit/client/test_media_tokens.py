"""Images in the oracle's prompts: equal ones are equal tokens, others share none."""

from __future__ import annotations

from typing import Any

import numpy as np

from milepost.bench.oracle import shared_length
from milepost.client.media_tokens import media_parts, put_between, stand_in

RED = {"type": "image_url", "image_url": {"url": "data:,red"}}
BLUE = {"type": "image_url", "image_url": {"url": "data:,blue"}}


def test_images_are_found_in_their_order() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "text"},
        {"role": "user", "content": [RED, {"type": "text", "text": "a"}, BLUE]},
        {"role": "assistant", "content": None},
    ]
    assert list(media_parts(messages)) == [RED, BLUE]


def test_equal_images_are_equal_and_others_share_nothing() -> None:
    assert stand_in(RED, 9).tolist() == stand_in(dict(RED), 9).tolist()
    assert shared_length(stand_in(RED, 9), stand_in(BLUE, 9)) == 0
    assert (stand_in(RED, 1000) < 0).all()


def test_texts_and_images_alternate() -> None:
    texts = [np.array(each, np.int32) for each in ([1, 2], [], [3])]
    prompt = put_between(texts, [stand_in(RED, 1), stand_in(BLUE, 2)])
    assert prompt.tolist()[:2] == [1, 2]
    assert prompt.tolist()[5:] == [3]
    assert len(prompt) == 6

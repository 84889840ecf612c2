"""Prompts of `/completion` with images and audio, as llama-server takes them.

    {"prompt_string": "What is <__media__> here?", "multimodal_data": ["iVBORw0KGgo…"]}

The marker, which `/props` tells, stands for the next of the data, each in base64.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from milepost.api.completion import Prompt
from milepost.api.http_body import field_error
from milepost.api.media_input import add_media
from milepost.api.server import ServedModel, Server
from milepost.chat.conversation.media_parts import MediaPart
from milepost.chat.prompts.raw_prompts import tokenize_around, tokenize_one, tokenize_raw
from milepost.chat.vocab import Vocab
from milepost.errors import InvalidRequest
from milepost.kinds import MediaKind
from milepost.protocol.messages import PromptInput, encode_tokens

MEDIA_MARKER = "<__media__>"


@dataclass(frozen=True, slots=True)
class Draft:
    """The tokens of a prompt, and its media with their positions."""

    tokens: list[int]
    parts: tuple[MediaPart, ...] = ()
    positions: tuple[int, ...] = ()


async def prepare_raw_prompts(
    server: Server, model: ServedModel, prompt: object, num_body_bytes: int
) -> list[Prompt]:
    """Return the prompts in the `prompt` field of `/completion`."""
    drafts = await server.preparation.run(
        num_body_bytes, lambda: draft_prompts(model.vocab, prompt)
    )
    return [
        await add_media(
            model,
            Prompt(PromptInput(tokens=encode_tokens(draft.tokens))),
            draft.parts,
            draft.positions,
        )
        for draft in drafts
    ]


def draft_prompts(vocab: Vocab, prompt: object) -> list[Draft]:
    """Tokenise the prompts; raises InvalidRequest as `tokenize_raw` does."""
    if _has_media(prompt):
        return [_draft_multimodal(vocab, prompt, "prompt")]
    if not isinstance(prompt, list) or not any(map(_has_media, prompt)) or _has_tokens(prompt):
        return [Draft(tokens) for tokens in tokenize_raw(vocab, prompt)]
    return [
        _draft_multimodal(vocab, item, f"prompt[{i}]")
        if _has_media(item)
        else Draft(tokenize_one(vocab, item, f"prompt[{i}]"))
        for i, item in enumerate(prompt)
    ]


def _has_media(item: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(item, Mapping) and bool(item.get("multimodal_data"))


def _has_tokens(items: list[Any]) -> bool:
    """Say whether a list is one prompt, of texts and tokens, and not one of prompts."""
    return any(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _draft_multimodal(vocab: Vocab, item: Mapping[str, Any], where: str) -> Draft:
    text, data = item.get("prompt_string"), item["multimodal_data"]
    if not isinstance(text, str):
        raise field_error(f"{where}.prompt_string", "must be a string", text)
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise field_error(f"{where}.multimodal_data", "must be a list of base64 texts", data)
    texts = text.split(MEDIA_MARKER)
    if len(texts) != len(data) + 1:
        raise InvalidRequest(
            f"{where}.prompt_string holds {len(texts) - 1} times {MEDIA_MARKER}, but there are "
            f"{len(data)} multimodal_data; send one for each",
            param="prompt",
        )
    tokens = tokenize_around(vocab, texts)
    parts = tuple(
        MediaPart(_guess_kind(each), f"{where}.multimodal_data[{i}]", each)
        for i, each in enumerate(data)
    )
    positions = tuple(itertools.accumulate(map(len, tokens[:-1])))
    return Draft(list(itertools.chain.from_iterable(tokens)), parts, positions)


def _guess_kind(data: str) -> MediaKind:
    """Tell audio by how its file begins; the request does not say."""
    text = data.partition(",")[2] if data.startswith("data:") else data
    try:
        head = base64.b64decode(text[:16])
    except ValueError:
        return "image"  # a URL, or nothing that will be decoded
    is_mpeg = head[:1] == b"\xff" and head[1:2] >= b"\xe0"
    is_audio = is_mpeg or head.startswith((b"ID3", b"fLaC")) or head[8:12] == b"WAVE"
    return "audio" if is_audio else "image"

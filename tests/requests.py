"""Requests to an engine, made of fields that stand in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from milepost.protocol.messages import Generate, GenerationParams, PromptInput, encode_tokens
from milepost.protocol.sampling import SamplingParams


def split_request(
    tokens: Sequence[int] | np.ndarray | bytes, **fields: Any
) -> tuple[PromptInput, GenerationParams]:
    """Return the two parts of a request, each with its fields."""
    data = tokens if isinstance(tokens, bytes) else encode_tokens(tokens)
    fields.setdefault("sampling", SamplingParams())
    of_prompt = {name: fields.pop(name) for name in PromptInput.__struct_fields__ if name in fields}
    return PromptInput(tokens=data, **of_prompt), GenerationParams(**fields)


def make_generate(
    request_id: int, tokens: Sequence[int] | np.ndarray | bytes = b"", **fields: Any
) -> Generate:
    """Return a message with these fields."""
    prompt, params = split_request(tokens, **fields)
    return Generate(request_id=request_id, prompt=prompt, params=params)

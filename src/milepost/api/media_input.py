"""Images and audio of a request: may the model see them, what are they, where do they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from milepost.api.completion import Prompt
from milepost.api.server import ServedModel
from milepost.chat.conversation.media_parts import MediaPart
from milepost.errors import InvalidRequest
from milepost.protocol.messages import MediaRef, ModelInfo


async def add_media(
    model: ServedModel, prompt: Prompt, parts: Sequence[MediaPart], positions: Sequence[int]
) -> Prompt:
    """Return the prompt with its media; `positions` are where they stand among its tokens.

    Raises InvalidRequest for what the model does not take, and as `MediaLoader.load` does.
    """
    if not parts:
        return prompt
    check_modalities(model.info, parts)
    files = await model.media.load(parts, model.info.audio_sample_rate)
    media = tuple(
        MediaRef(
            pos=pos,
            kind=facts.kind,
            key=facts.key,
            width=facts.width,
            height=facts.height,
            num_samples=facts.num_samples,
        )
        for pos, facts in zip(positions, files.facts, strict=True)
    )
    return replace(prompt, input=msgspec.structs.replace(prompt.input, media=media), files=files)


def check_modalities(info: ModelInfo, parts: Sequence[MediaPart]) -> None:
    """Raise InvalidRequest for the first part that the model cannot take."""
    for part in parts:
        what, is_taken = "an image", info.has_vision
        if part.kind == "audio":
            what, is_taken = "audio", info.has_audio
        if is_taken:
            continue
        if info.has_vision or info.has_audio:
            reason = "the model's projector takes none; leave it out"
        else:
            reason = (
                "the model is loaded without a projector and takes text only; leave it out, or "
                "start the server with --mmproj FILE, or with -hf and a repository that has one"
            )
        raise InvalidRequest(f"{part.where} is {what}, but {reason}", param="messages")

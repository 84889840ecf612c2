"""What an engine needs to know about images and audio."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config.cache import CacheSettings
from milepost.config.flag import Flag, setting

GROUP = "Images and audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings(CacheSettings):
    """The part of the engine's settings that is about media."""

    mmproj: str = setting(
        "",
        Flag(
            names="-mm --mmproj",
            env="LLAMA_ARG_MMPROJ",
            group=GROUP,
            metavar="FILE",
            help="GGUF file of the projector that makes images or audio readable for the model.",
        ),
    )
    mmproj_auto: bool = setting(
        True,
        Flag(
            names="--mmproj-auto",
            negated="--no-mmproj --no-mmproj-auto",
            env="LLAMA_ARG_MMPROJ_AUTO",
            group=GROUP,
            help="Use a projector: the one that is named, or the one beside a hub model.",
        ),
    )
    mmproj_offload: bool = setting(
        True,
        Flag(
            names="--mmproj-offload",
            negated="--no-mmproj-offload",
            env="LLAMA_ARG_MMPROJ_OFFLOAD",
            group=GROUP,
            help="Let the GPU compute the projector.",
        ),
    )
    image_min_tokens: int = setting(
        -1,
        Flag(
            names="--image-min-tokens",
            env="LLAMA_ARG_IMAGE_MIN_TOKENS",
            group=GROUP,
            unit="tokens",
            minimum=-1,
            maximum=2**20,
            shown_default="-1: from the projector",
            help="Least tokens of an image, for projectors that take images of any size.",
        ),
    )
    image_max_tokens: int = setting(
        -1,
        Flag(
            names="--image-max-tokens",
            env="LLAMA_ARG_IMAGE_MAX_TOKENS",
            group=GROUP,
            unit="tokens",
            minimum=-1,
            maximum=2**20,
            shown_default="-1: from the projector",
            help="Most tokens of an image, for projectors that take images of any size.",
        ),
    )
    media_cache: int = setting(
        512,
        Flag(
            names="--media-cache",
            env="MILEPOST_MEDIA_CACHE",
            group=GROUP,
            unit="MiB",
            minimum=0,
            help="Memory for images and audio as the projector encoded them, and as much again on "
            "disk where there is a disk cache, besides its own limits; 0: none.",
        ),
    )

    @property
    def projector_path(self) -> str:
        """The file to load; empty: none."""
        return self.mmproj if self.mmproj_auto else ""

"""Settings of images and audio in requests: where they may come from, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config.flag import Flag, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaInputSettings:
    """What of the images and audio that requests carry, or name, is taken."""

    media_path: str = setting(
        "",
        Flag(
            names="--media-path",
            env="MILEPOST_MEDIA_PATH",
            metavar="FOLDER",
            group="Images and audio",
            help="Let requests name images and audio below this folder, as file://name.",
        ),
    )
    allow_remote: bool = setting(
        False,
        Flag(
            names="--allow-remote-media",
            env="MILEPOST_ALLOW_REMOTE_MEDIA",
            group="Images and audio",
            help="Fetch images and audio that requests name by http(s) URL; from public addresses "
            "only.",
        ),
    )
    remote_timeout_s: int = setting(
        10,  # llama-server's
        Flag(
            names="--media-timeout",
            env="MILEPOST_MEDIA_TIMEOUT",
            group="Images and audio",
            unit="s",
            minimum=1,
            maximum=600,
            help="Longest fetch of one image or audio, redirects included.",
        ),
    )
    max_bytes: int = setting(
        20 << 20,  # arbitrary; a screenshot has about 1 MB, what OpenAI takes at most 20
        Flag(
            names="--media-max-mib",
            env="MILEPOST_MEDIA_MAX_MIB",
            group="Images and audio",
            kind="mebibytes",
            unit="MiB",
            minimum=1,
            maximum=1024,
            shown_default="20",
            help="Largest file of one image or audio.",
        ),
    )
    max_pixels: int = setting(
        40_000_000,  # arbitrary; decoded, 120 MB. A 5K screen has 15 million
        Flag(
            names="--media-max-pixels",
            env="MILEPOST_MEDIA_MAX_PIXELS",
            group="Images and audio",
            unit="pixels",
            minimum=1,
            maximum=300_000_000,  # decoded they still fit into one message to the engine
            help="Most pixels of one image.",
        ),
    )
    max_audio_s: int = setting(
        1800,  # arbitrary; at 16 kHz decoded, 115 MB
        Flag(
            names="--media-max-audio",
            env="MILEPOST_MEDIA_MAX_AUDIO",
            group="Images and audio",
            unit="s",
            minimum=1,
            maximum=3600,  # likewise, at 48 kHz
            help="Longest audio.",
        ),
    )
    max_count: int = setting(
        256,  # arbitrary; a long day's screenshots
        Flag(
            names="--media-max-count",
            env="MILEPOST_MEDIA_MAX_COUNT",
            group="Images and audio",
            minimum=1,
            maximum=4096,
            help="Most images and audios of one request.",
        ),
    )

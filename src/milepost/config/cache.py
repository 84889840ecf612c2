"""What the prefix cache may keep, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from milepost.config.flag import Flag, setting
from milepost.kinds import SyncMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The part of the engine's settings that is about the prefix cache."""

    cache_ram: int = setting(
        -2,
        Flag(
            names="-cram --cache-ram",
            env="LLAMA_ARG_CACHE_RAM",
            group="Cache",
            unit="MiB",
            minimum=-2,
            shown_default="-2: a quarter of the memory, at most 8192",
            help="Memory for prefixes outside the context; -1: no limit, 0: none.",
        ),
    )
    ctx_checkpoints: int = setting(
        32,
        Flag(
            names="-ctxcp --ctx-checkpoints --swa-checkpoints",
            env="LLAMA_ARG_CTX_CHECKPOINTS",
            group="Cache",
            minimum=0,
            help="Most states kept along one conversation; 0: none.",
        ),
    )
    checkpoint_min_step: int = setting(
        256,
        Flag(
            names="-cms --checkpoint-min-step",
            env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
            group="Cache",
            unit="tokens",
            minimum=0,
            help="Least distance between two states, exact boundaries excepted; 0: none.",
        ),
    )
    parked_slots: int = setting(
        -1,
        Flag(
            names="--parked-slots",
            env="MILEPOST_PARKED_SLOTS",
            group="Cache",
            minimum=-1,
            maximum=64,
            shown_default="-1: up to 4, by the size of a state",
            help="Conversations that stay in the KV cache without a slot; 0: none.",
        ),
    )
    checkpoint_every_n_tokens: int = setting(
        8192,
        Flag(
            names="--checkpoint-every-n-tokens",
            env="LLAMA_ARG_CHECKPOINT_EVERY_NT",
            group="Cache",
            unit="tokens",
            minimum=0,
            help="Keep a state every so many tokens of a long prompt; 0: off.",
        ),
    )
    cache_on_disk: bool = setting(
        True,
        Flag(
            names="--cache-on-disk",
            negated="--no-cache-disk",
            env="MILEPOST_CACHE_ON_DISK",
            group="Cache",
            help="Keep prefixes on disk, for later runs; it equals the conversations.",
        ),
    )
    cache_dir: str = setting(
        "",
        Flag(
            names="--cache-dir",
            env="MILEPOST_CACHE_DIR",
            group="Cache",
            metavar="FOLDER",
            shown_default="the platform's cache folder",
            help="Where the disk cache is.",
        ),
    )
    cache_disk: float = setting(
        -1.0,
        Flag(
            names="--cache-disk",
            env="MILEPOST_CACHE_DISK",
            group="Cache",
            unit="GiB",
            minimum=-1,
            shown_default="-1: a tenth of the free space, at most 20",
            help="Room for the disk cache of this model; 0: none.",
        ),
    )
    cache_disk_sync: SyncMode = setting(
        "idle",
        Flag(
            names="--cache-disk-sync",
            env="MILEPOST_CACHE_DISK_SYNC",
            group="Cache",
            choices=get_args(SyncMode),
            help="When a conversation is written to disk: after each answer, when nothing has "
            "come for a few seconds, or at the end of the program.",
        ),
    )
    cache_disk_write_limit: float = setting(
        -1.0,
        Flag(
            names="--cache-disk-write-limit",
            env="MILEPOST_CACHE_DISK_WRITE_LIMIT",
            group="Cache",
            unit="GiB per day",
            minimum=-1,
            shown_default="-1: none",
            help="Most that is written to the disk cache in a day; what the projector encoded "
            "(--media-cache) does not count.",
        ),
    )

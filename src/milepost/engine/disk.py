"""Opens the disk below the cache of a loaded model."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from pathlib import Path

from milepost.cache.disk.fingerprint import FileIdentity, Fingerprint, RopeSettings, identify_file
from milepost.cache.disk.limits import DiskClock, DiskLimits
from milepost.cache.disk.store import DiskStore
from milepost.cache.prefix_cache import PrefixCache
from milepost.config import EngineSettings
from milepost.config.cache_folder import default_cache_folder
from milepost.engine.memory_probe import MemoryTraits
from milepost.errors import DiskCacheUnusable

STATE_LAYOUT_VERSION = 1  # of libllama.state: header, attention, partial
MAX_DEFAULT_BYTES = 20 << 30
SPLIT_MODEL = re.compile(r"-\d{5}-of-\d{5}\.gguf$")

logger = logging.getLogger(__name__)


def attach_disk(
    cache: PrefixCache, settings: EngineSettings, library: str, traits: MemoryTraits
) -> None:
    """Let the disk be below a cache, if one is to be used, with all that earlier runs left there.

    A disk that cannot be used is logged, and the model served without it.
    """
    keeps_any = settings.cache_on_disk and settings.cache_disk != 0
    if not (keeps_any and traits.can_restore and cache.limits.budget_bytes > 0):
        return
    root = Path(settings.cache_dir) if settings.cache_dir else default_folder()
    started_s = time.perf_counter()
    try:
        fingerprint = make_fingerprint(settings, library, traits)
        limits = make_limits(settings, root)
        clock = DiskClock(time.time, time.perf_counter)
        store = DiskStore.open(root, fingerprint, limits, clock)
        loaded = cache.attach_disk(store, time.time() - time.perf_counter())
    except (DiskCacheUnusable, OSError) as error:
        logger.warning("the cache on disk is not used: %s", error)
        return
    logger.info(
        "cache on disk: %d states and segments, %.1f MB of at most %.1f GB, known after %.0f ms",
        loaded.num_blobs - loaded.num_useless,
        loaded.num_bytes / 1e6,
        limits.budget_bytes / 1e9,
        1000 * (time.perf_counter() - started_s),
    )


def default_folder() -> Path:
    """Return the platform's cache folder."""
    return default_cache_folder(os.environ, sys.platform, Path.home())


def make_limits(settings: EngineSettings, root: Path) -> DiskLimits:
    """Return what the flags allow."""
    budget_bytes = int(settings.cache_disk * 2**30)
    if settings.cache_disk < 0:
        existing = next(folder for folder in (root, *root.parents) if folder.exists())
        budget_bytes = min(shutil.disk_usage(existing).free // 10, MAX_DEFAULT_BYTES)
    per_day = settings.cache_disk_write_limit
    return DiskLimits(
        budget_bytes=budget_bytes,
        max_written_bytes_per_day=int(per_day * 2**30) if per_day >= 0 else None,
    )


def make_fingerprint(settings: EngineSettings, library: str, traits: MemoryTraits) -> Fingerprint:
    """Return everything that changes the bytes of states; reads a little of the model file."""
    return Fingerprint(
        model_files=tuple(identify_model(Path(settings.model_path))),
        type_k=settings.cache_type_k,
        type_v=settings.cache_type_v,
        flash_attention=settings.flash_attn != "off",
        full_window=settings.swa_full,
        memory_kind=traits.describe_layout(),
        rope=RopeSettings(
            scaling=settings.rope_scaling,
            freq_base=settings.rope_freq_base,
            freq_scale=settings.chosen_rope_freq_scale,
            yarn_ext_factor=settings.yarn_ext_factor,
            yarn_attn_factor=settings.yarn_attn_factor,
            yarn_beta_fast=settings.yarn_beta_fast,
            yarn_beta_slow=settings.yarn_beta_slow,
            yarn_orig_ctx=settings.yarn_orig_ctx,
        ),
        loras=(),
        library_build=library,
        state_layout_version=STATE_LAYOUT_VERSION,
    )


def identify_model(path: Path) -> list[FileIdentity]:
    """Return the identities of all files of a model, in their order."""
    if SPLIT_MODEL.search(path.name):
        stem = SPLIT_MODEL.sub("", path.name)
        return [identify_file(part) for part in sorted(path.parent.glob(f"{stem}-*-of-*.gguf"))]
    return [identify_file(path)]

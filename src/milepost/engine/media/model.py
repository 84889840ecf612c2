"""Loads a projector, and makes what the engine needs beside it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from milepost.cache.disk.embedding_files import MEDIA_FOLDER, EmbeddingFiles
from milepost.cache.disk.fingerprint import identify_file
from milepost.config import EngineSettings
from milepost.engine.media.layouts import MediaModel
from milepost.engine.media.worker import MediaWorker
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.threads import count_physical_cores
from milepost.errors import ConfigurationError
from milepost.libllama import Model
from milepost.libllama.media import EmbeddingBlock, MediaSize, Projector, ProjectorParams

PROBED = (64, 48)  # pixels; small, and with more columns than rows

logger = logging.getLogger(__name__)


def load_projector(model: Model, settings: EngineSettings) -> Projector | None:
    """Load the projector that is named, if one is. Raises ModelFileError or ConfigurationError."""
    if not settings.projector_path:
        return None
    check_image_tokens(settings.image_min_tokens, settings.image_max_tokens)
    threads = settings.threads if settings.threads > 0 else count_physical_cores()
    params = ProjectorParams(
        use_gpu=settings.mmproj_offload and settings.n_gpu_layers != 0,
        num_threads=settings.threads_batch if settings.threads_batch > 0 else threads,
        flash_attn=settings.flash_attn,
        image_min_tokens=settings.image_min_tokens,
        image_max_tokens=settings.image_max_tokens,
    )
    projector = Projector(model, Path(settings.projector_path), params)
    kinds = [
        kind
        for kind, has_it in (("images", projector.has_vision), ("audio", projector.has_audio))
        if has_it
    ]
    logger.info("projector: takes %s", " and ".join(kinds))
    return projector


def check_image_tokens(least: int, most: int) -> None:
    """Raise ConfigurationError unless an image can have that many tokens; -1: as it likes."""
    if 0 in (least, most) or 0 < most < least:
        raise ConfigurationError(
            f"--image-min-tokens is {least} and --image-max-tokens {most}: give two "
            "numbers above 0, the first not the larger, or leave them to the projector with -1"
        )


def choose_probed(projector: Projector, num_ubatch_tokens: int) -> EmbeddingBlock | None:
    """Return what stands for media when it is tried what the context's memory can do.

    None where even a small one does not fit into a micro-batch.
    """
    rate = projector.audio_sample_rate
    size = MediaSize("image", *PROBED) if projector.has_vision else MediaSize("audio", 0, 0, rate)
    blocks = [block for block in projector.lay_out(size) if isinstance(block, EmbeddingBlock)]
    fitting = [block for block in blocks if block.num_tokens <= num_ubatch_tokens]
    return min(fitting, key=lambda block: block.num_tokens, default=None)


def make_media(
    projector: Projector, settings: EngineSettings, runtime: ModelRuntime, wake: Callable[[], None]
) -> MediaModel:
    """Start the thread that encodes; `wake` is called on it after each media."""
    budget_bytes = settings.media_cache << 20
    files = None
    folder = runtime.cache.disk_folder
    if folder is not None and budget_bytes > 0:
        files = EmbeddingFiles(folder / MEDIA_FOLDER, budget_bytes)
    return MediaModel(
        projector=projector,
        worker=MediaWorker(projector.encode, files, wake),
        identity=identify_projector(settings, runtime.context.model.library.name),
        budget_bytes=budget_bytes,
        num_ubatch_tokens=runtime.context.num_ubatch_tokens,
    )


def identify_projector(settings: EngineSettings, library: str) -> bytes:
    """Return a hash of all that embeddings depend on besides the content: 32 bytes.

    It is in the keys of media, and nowhere else: what a text-only conversation leaves behind is the
    same with any projector, and with none.
    """
    identity = (
        identify_file(Path(settings.projector_path)),
        settings.image_min_tokens,
        settings.image_max_tokens,
        library,
    )
    return hashlib.sha256(repr(identity).encode(), usedforsecurity=False).digest()

"""`milepost serve`: flags and environment -> Settings, the model file found, the server started."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from milepost.cli.collect import BadValue, collect_settings, unknown_variables
from milepost.cli.flags import FlagCommand
from milepost.cli.model_file import check_model_file, model_name_of
from milepost.config import EngineSettings, ModelSource, ServerSettings, Settings
from milepost.errors import ConfigurationError, ModelFileError
from milepost.logs import set_up_logging

logger = logging.getLogger(__name__)

EXAMPLE = "for example -m model.gguf, or -hf ggml-org/Qwen3-0.6B-GGUF:Q8_0"


def serve(**given: Any) -> None:
    """Serve one model until the process is told to end."""
    try:
        settings, source = collect_settings(given, os.environ)
    except BadValue as error:
        raise click.UsageError(str(error)) from None

    set_up_logging(settings.log)
    for name in unknown_variables(os.environ):
        logger.warning("%s has no effect: milepost does not have this setting", name)
    if not settings.chat.jinja:
        logger.warning("--no-jinja has no effect: chats are rendered with Jinja templates only")
    settings = resolve_settings(settings, source)

    # Loads FastAPI and all the rest; waits until flags and model file are known to be right.
    from milepost.assemble import serve as serve_forever

    serve_forever(settings)


serve_command = FlagCommand(
    "serve",
    callback=serve,
    help="Serve a GGUF model over HTTP, with the names of llama-server's flags and variables. "
    "A flag counts before its environment variable.",
)


def resolve_settings(settings: Settings, source: ModelSource) -> Settings:
    """Return the settings with paths, model name, micro-batch size and API keys filled in.

    Reads the key file and the heads of the model and projector files, and may fetch both.
    """
    engine = settings.engine
    check_media_path(settings.media.media_path)
    path, projector = resolve_files(source, engine)
    aliases = settings.server.alias
    # llama.cpp does the same without a word, so that `-b 256` alone works.
    ubatch_size = min(engine.ubatch_size, engine.batch_size)
    return replace(
        settings,
        engine=replace(engine, model_path=str(path), mmproj=projector, ubatch_size=ubatch_size),
        server=replace(settings.server, api_keys=all_api_keys(settings.server)),
        model_name=aliases[0] if aliases else source.hf_repo or model_name_of(path),
    )


def check_media_path(folder: str) -> None:
    """Raise ConfigurationError if a folder for media is named that is none."""
    if folder and not Path(folder).expanduser().is_dir():
        raise ConfigurationError(f"--media-path {folder} is no folder; give one that exists")


def resolve_files(source: ModelSource, engine: EngineSettings) -> tuple[Path, str]:
    """Return the paths of the model and of its projector, "" without one.

    Raises ConfigurationError.
    """
    projector = engine.projector_path
    if source.hf_repo and engine.mmproj_auto and not projector:
        from milepost.cli.hub import fetch_with_projector

        path, found = fetch_with_projector(source)
        projector = str(found or "")
        check_model_file(path)
    else:
        path = resolve_model(source)
    if projector:
        projector = str(Path(projector).expanduser())
        check_model_file(Path(projector))
    return path, projector


def resolve_model(source: ModelSource) -> Path:
    """Return the path of a file that looks like a model. Raises ConfigurationError."""
    if source.hf_repo:
        from milepost.cli.hub import fetch_model

        path = fetch_model(source)
    elif source.model:
        path = Path(source.model).expanduser()
    elif source.hf_file:
        raise ModelFileError("-hff names a file of a hub repository; give that one with -hf")
    else:
        raise ModelFileError(f"no model was given; {EXAMPLE}")
    check_model_file(path)
    return path


def all_api_keys(server: ServerSettings) -> tuple[str, ...]:
    """Return the keys given directly and those of the key file. Raises ConfigurationError."""
    if not server.api_key_file:
        return server.api_keys
    try:
        lines = Path(server.api_key_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise ConfigurationError(
            f"the key file {server.api_key_file} cannot be read: {reason}"
        ) from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"the key file {server.api_key_file} holds no key")
    return (*server.api_keys, *keys)

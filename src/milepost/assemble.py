"""Builds the front end's object graph and runs it: engine process, vocabulary, HTTP server.

The only module that knows all parts of the front end. `milepost serve` calls `serve`, `milepost
probe` what describes templates.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop

from milepost.api.app import create_app
from milepost.api.http_protocol import HttpProtocol
from milepost.api.server import ServedModel, Server
from milepost.chat.prompts.prepare import PromptPreparer
from milepost.chat.reply_memory.reply_disk import ReplyDisk
from milepost.chat.reply_memory.reply_store import ReplyStore
from milepost.chat.templates.loading import load_templates
from milepost.chat.templates.report import describe_template, load_template, log_consequences
from milepost.chat.templates.template import ChatTemplate, SpecialTexts, TemplateSet, check_kwargs
from milepost.config import ServerSettings, Settings
from milepost.errors import ConfigurationError, InvalidRequest
from milepost.libllama import Model, ModelParams, open_library
from milepost.media.loader import MediaLoader
from milepost.protocol.messages import ModelInfo
from milepost.traces.recorder import Recorder
from milepost.workers.client import EngineClient, WaitingLine
from milepost.workers.supervisor import Supervisor

TEMPLATE_KEY = "tokenizer.chat_template"  # named templates have the name after a dot
LISTEN_BACKLOG = 128
STREAM_GRACE_S = 3  # for answers under way when the server is told to end; arbitrary
PROGRESS_INTERVAL_S = 5.0  # between two lines about a long load, where they cannot overwrite

logger = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve one model until a signal ends it.

    Raises ConfigurationError when the port is taken or the model cannot be loaded.
    """
    uvloop.run(run_server(settings))


async def run_server(settings: Settings) -> None:
    """Start the engine process and the HTTP server, and wait for the end of the latter."""
    listener = bind_listener(settings.server)
    client = EngineClient(WaitingLine(settings.server.max_waiting))
    supervisor = Supervisor(client, settings.engine, settings.log)
    progress = LoadProgressReport(settings.model_name)
    with contextlib.closing(listener):
        first_load = supervisor.start(progress.show)
        try:
            server = make_http_server(make_server(settings, client))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await asyncio.wait([first_load, serving], return_when=asyncio.FIRST_COMPLETED)
            if first_load.done():
                progress.end()
                if first_load.exception() is None and client.model is not None:
                    freeze_garbage()
                    sys.stderr.write(describe_server(settings, client.model, listener))
                else:
                    server.should_exit = True
            await serving
        finally:
            await supervisor.stop()
    if first_load.done() and (error := first_load.exception()):
        raise error


def freeze_garbage() -> None:
    """Take what lives as long as the process out of the garbage collector's sight.

    A full collection looks at every object, some hundred thousand after the imports, and would fall
    into whichever request makes enough new ones.
    """
    gc.collect()
    gc.freeze()


def make_server(settings: Settings, client: EngineClient) -> Server:
    """Return the server with the one model that it serves."""
    return Server(settings=settings.server, models=(make_served_model(settings, client),))


def make_served_model(settings: Settings, client: EngineClient) -> ServedModel:
    """Load the vocabulary and the templates of a model, and put its parts together."""
    model = Model(
        open_library(), Path(settings.engine.model_path), ModelParams(vocab_only=True)
    )  # lives as long as the process: the vocabulary belongs to it
    replies = ReplyStore()
    reply_disk = ReplyDisk(replies)
    client.on_loaded = partial(open_reply_disk, reply_disk)
    return ServedModel(
        name=settings.model_name,
        settings=settings,
        engine=client,
        vocab=model.vocab,
        prompts=PromptPreparer(load_model_templates(model, settings), model.vocab, replies),
        media=MediaLoader(settings.media, settings.server.max_body_bytes),
        replies=replies,
        reply_disk=reply_disk,
        created=int(time.time()),
    )


def open_reply_disk(disk: ReplyDisk, model: ModelInfo) -> None:
    """Let the replies that were sampled in earlier runs be known, if the model has a folder."""
    if model.cache_folder:
        disk.open(Path(model.cache_folder))


def load_model_templates(model: Model, settings: Settings) -> TemplateSet:
    """Load the templates that the settings name, or those in the model file; log their traits."""
    try:
        check_kwargs(settings.chat.chat_template_kwargs)
    except InvalidRequest as error:
        raise ConfigurationError(f"--chat-template-kwargs: {error}") from error
    templates = load_templates(
        embedded_templates(model),
        model.vocab,
        chat_template=settings.chat.chat_template,
        chat_template_file=settings.chat.chat_template_file,
    )
    log_consequences(templates)
    return templates


def embedded_templates(model: Model) -> Mapping[str, str]:
    """Return the chat templates of a model file by name, the unnamed one under ""."""
    found = {}
    for key in model.metadata_keys():
        if key == TEMPLATE_KEY or key.startswith(TEMPLATE_KEY + "."):
            found[key[len(TEMPLATE_KEY) + 1 :]] = model.metadata(key) or ""
    return found


def describe_model_templates(path: Path) -> list[dict[str, Any]]:
    """Return what is learnt from each template of a model file, for `milepost probe`.

    Raises ConfigurationError if the model has none, or cannot be read.
    """
    model = Model(open_library(), path, ModelParams(vocab_only=True))
    texts = SpecialTexts.of(model.vocab)
    sources = embedded_templates(model)
    if not sources:
        raise ConfigurationError(f"{path} has no chat template; name one to probe instead")
    return [
        describe_template(
            ChatTemplate(source, name=f"{path.name} ({name or 'default'})", texts=texts)
        )
        for name, source in sources.items()
    ]


def describe_one_template(target: str) -> dict[str, Any]:
    """Return what is learnt from a template in a file, or a built-in one."""
    return describe_template(load_template(target))


class HttpServer(uvicorn.Server):
    """Ends on a signal, and keeps it to itself.

    uvicorn would send it to the process again, which then died at once: before the engine has
    written its conversations to disk, so that the next server would begin without them.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ask for an orderly end; a second Ctrl-C does not wait for answers under way."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def make_http_server(server: Server) -> uvicorn.Server:
    """Return the HTTP server, not yet started."""
    app: Any = create_app(server)
    if server.settings.record:
        app = Recorder(app, Path(server.settings.record).expanduser())
    return HttpServer(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_keep_alive=server.settings.timeout_s,
            timeout_graceful_shutdown=STREAM_GRACE_S,
        )
    )


def bind_listener(server: ServerSettings) -> socket.socket:
    """Return a listening socket; it is bound before anything slow is done."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {server.host} port {server.port}: {error.strerror or error}; "
            "choose another one with --port or --host"
        ) from error
    return listener


class LoadProgressReport:
    """Shows how far a load is: one line that is overwritten, or a log line now and then."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._is_terminal = sys.stderr.isatty()
        self._last_s = time.monotonic()
        self._has_line = False

    def show(self, fraction: float) -> None:
        """Take a new loaded fraction, 0 to 1."""
        if self._is_terminal:
            sys.stderr.write(f"\rloading {self._model_name} {fraction:4.0%}")
            sys.stderr.flush()
            self._has_line = True
        elif time.monotonic() - self._last_s >= PROGRESS_INTERVAL_S:
            self._last_s = time.monotonic()
            logger.info("loading %s: %.0f %%", self._model_name, 100 * fraction)

    def end(self) -> None:
        """Remove the line."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")


def describe_server(settings: Settings, model: ModelInfo, listener: socket.socket) -> str:
    """Return the block that says what is served."""
    host, port = listener.getsockname()[:2]
    shown_host = f"[{host}]" if ":" in host else host
    memory: str = model.memory_kind
    if model.num_window_tokens:
        memory += f", {model.num_window_tokens} tokens"
    rows = {
        "model": f"{settings.model_name} ({model.description}, "
        f"{model.num_params / 1e6:,.0f} M parameters, {model.size_bytes / 1e6:,.0f} MB)",
        "memory": memory,
        "context": f"{model.num_context_tokens:,} tokens, shared by {model.num_parallel} requests",
        "device": model.device,
        "loaded": f"in {model.load_s:.1f} s",
        "listens": f"http://{shown_host}:{port}/v1",
    }
    return "".join(f"  {name:<8} {value}\n" for name, value in rows.items())

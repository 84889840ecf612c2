"""An engine process from its socket: how it starts, refuses, dies and is started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests import models
from tests.engine.running import GREEDY, RunningEngine, prompt_tokens, running_engine, spec
from tests.processes import clean_environment
from tests.requests import make_generate

from milepost.config import EngineSettings, LogSettings
from milepost.errors import EngineDied, ModelFileError, Unavailable
from milepost.protocol.framing import FrameReader, encode_frame, engine_reader
from milepost.protocol.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Delta,
    Failed,
    Finished,
    FromEngine,
    Generate,
    GetStatus,
    Hello,
    Load,
    LoadFailed,
    Message,
    PromptProgress,
    Ready,
    Shutdown,
    Status,
)
from milepost.workers.client import EngineClient
from milepost.workers.supervisor import ENGINE_COMMAND, Supervisor

TIMEOUT_S = 30.0
M = TypeVar("M")


@dataclass
class RawEngine:
    """An engine process, spoken to in frames."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    reader: FrameReader[FromEngine] = field(default_factory=engine_reader)
    received: list[FromEngine] = field(default_factory=list)

    def send(self, *messages: Message) -> None:
        self.sock.sendall(b"".join(map(encode_frame, messages)))

    def wait_for(self, kind: type[M]) -> M:
        """Return the next message of a kind; those before it are dropped."""
        while True:
            while self.received:
                message = self.received.pop(0)
                if isinstance(message, kind):
                    return message
            data = self.sock.recv(1 << 16)
            assert data, f"the process ended before it sent {kind.__name__}"
            self.received += self.reader.feed(data)

    def load(self, model: Path, **settings: Any) -> Ready:
        self.wait_for(Hello)
        self.send(load_message(model, **settings))
        return self.wait_for(Ready)

    def wait_for_end(self) -> tuple[int, str]:
        """Return exit status and what was written to stderr."""
        _, stderr = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, stderr.decode()


def load_message(model: Path, **settings: Any) -> Load:
    engine = EngineSettings(
        model_path=str(model),
        **{"parallel": 2, "ctx_size": 8192, "threads": 1, "cache_on_disk": False, **settings},
    )
    return Load(
        settings=msgspec.msgpack.encode(engine),
        log_settings=msgspec.msgpack.encode(LogSettings(verbosity=2)),
    )


def generate_message(request_id: int, tokens: list[int], **fields: Any) -> Generate:
    return make_generate(request_id, tokens, sampling=GREEDY, **fields)


@pytest.fixture
def raw() -> Iterator[RawEngine]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with theirs:
        process = subprocess.Popen(
            [*ENGINE_COMMAND, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=clean_environment({}),
        )
    with ours, process:
        yield RawEngine(process, ours)
        with contextlib.suppress(ProcessLookupError):
            process.kill()


@pytest.fixture
def model(tiny_models: dict[models.Kind, Path]) -> Path:
    return tiny_models["full"]


# --- the start -----------------------------------------------------------------------------


def test_hello_comes_first(raw: RawEngine) -> None:
    hello = raw.wait_for(Hello)
    assert hello.protocol_version == PROTOCOL_VERSION
    assert hello.pid == raw.process.pid
    assert hello.library.startswith("xllamacpp ")


def test_a_loaded_model_is_described(raw: RawEngine, model: Path) -> None:
    info = raw.load(model).model
    shape = models.Shape()
    assert (info.num_embd, info.num_layers) == (shape.embd, shape.layers)
    assert info.num_vocab == len(models.vocabulary())
    assert info.num_context_train_tokens == shape.context
    assert (info.num_context_tokens, info.num_parallel) == (8192, 2)
    assert (info.num_batch_tokens, info.num_ubatch_tokens) == (2048, 512)
    assert (info.memory_kind, info.num_window_tokens, info.device) == ("full", 0, "CPU")
    assert 0 < info.load_s < TIMEOUT_S


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (GetStatus(status_id=1), "the first message is a GetStatus instead of a Load"),
        (Load(settings=b"\xc1", log_settings=b"\x80"), "settings in Load cannot be understood"),
        (Load(settings=b"\x80", log_settings=b"\x01"), "settings in Load cannot be understood"),
        (
            Load(settings=msgspec.msgpack.encode({"ctx_size": "big"}), log_settings=b"\x80"),
            "Expected `int`, got `str`",
        ),
    ],
)
def test_a_first_message_that_is_no_load_is_refused(
    raw: RawEngine, first: Message, message: str
) -> None:
    raw.wait_for(Hello)
    raw.send(first)
    failed = raw.wait_for(LoadFailed)
    assert failed.failure.kind == "ProtocolError"
    assert message in failed.failure.message
    assert raw.wait_for_end() == (1, "")


def test_a_model_that_is_missing_is_reported(raw: RawEngine, tmp_path: Path) -> None:
    raw.wait_for(Hello)
    raw.send(load_message(tmp_path / "missing.gguf"))
    failed = raw.wait_for(LoadFailed)
    assert failed.failure.kind == "ModelFileError"
    assert "missing.gguf does not exist" in failed.failure.message
    assert raw.wait_for_end() == (1, "")


def test_a_log_file_that_cannot_be_opened_is_reported(
    raw: RawEngine, model: Path, tmp_path: Path
) -> None:
    log = LogSettings(file=str(tmp_path / "no" / "folder.log"))
    raw.wait_for(Hello)
    raw.send(
        Load(
            settings=load_message(model).settings,
            log_settings=msgspec.msgpack.encode(log),
        )
    )
    failed = raw.wait_for(LoadFailed)
    assert failed.failure.kind == "ConfigurationError"
    assert "folder.log cannot be opened" in failed.failure.message
    assert raw.wait_for_end() == (1, "")


# --- the end -------------------------------------------------------------------------------


def test_shutdown_ends_the_process(raw: RawEngine, model: Path) -> None:
    raw.load(model)
    raw.send(Shutdown())
    assert raw.wait_for_end() == (0, "")


def test_a_front_end_that_is_gone_ends_the_process(raw: RawEngine, model: Path) -> None:
    raw.load(model)
    raw.sock.close()
    assert raw.wait_for_end() == (0, "")


def test_a_front_end_that_goes_before_the_load(raw: RawEngine) -> None:
    raw.sock.close()
    assert raw.wait_for_end() == (0, "")


def test_a_front_end_that_goes_during_the_load(raw: RawEngine, slow_model: Path) -> None:
    raw.wait_for(Hello)
    raw.send(load_message(slow_model))
    raw.sock.close()
    assert raw.wait_for_end() == (0, "")


@pytest.mark.parametrize("kind", ["full", "hybrid"])
def test_a_front_end_that_goes_during_a_prefill(
    raw: RawEngine, tiny_models: dict[models.Kind, Path], kind: models.Kind
) -> None:
    raw.load(tiny_models[kind])
    raw.send(generate_message(1, prompt_tokens(8000), wants_progress=True))
    while raw.wait_for(PromptProgress).num_processed == 0:
        pass
    raw.sock.close()
    assert raw.wait_for_end() == (0, "")


def test_a_front_end_that_goes_during_decoding(raw: RawEngine, model: Path) -> None:
    raw.load(model)
    raw.send(generate_message(1, prompt_tokens(10)), generate_message(2, prompt_tokens(20)))
    raw.wait_for(Delta)
    raw.sock.close()
    assert raw.wait_for_end() == (0, "")


@pytest.mark.parametrize("is_loaded", [False, True])
def test_garbage_ends_the_process_with_a_sentence(
    raw: RawEngine, model: Path, is_loaded: bool
) -> None:
    if is_loaded:
        raw.load(model)
    else:
        raw.wait_for(Hello)
    raw.sock.sendall(b"\x04\x00\x00\x00oops")
    status, stderr = raw.wait_for_end()
    assert status == 0
    assert "a frame of 4 bytes is not a message" in stderr
    assert "Traceback" not in stderr


# --- requests ------------------------------------------------------------------------------


def test_a_waiting_request_that_is_cancelled_is_finished(raw: RawEngine, model: Path) -> None:
    raw.load(model, parallel=1)
    raw.send(generate_message(1, prompt_tokens(10)), generate_message(2, prompt_tokens(20)))
    raw.wait_for(Delta)
    raw.send(Cancel(request_id=2))
    finished = raw.wait_for(Finished)
    assert (finished.request_id, finished.reason) == (2, "cancelled")
    assert finished.num_prompt_tokens == 20
    raw.send(Cancel(request_id=1))
    finished = raw.wait_for(Finished)
    assert (finished.request_id, finished.reason) == (1, "cancelled")
    assert finished.timings.predicted_n > 0


def test_cancels_of_unknown_requests_are_ignored(raw: RawEngine, model: Path) -> None:
    raw.load(model)
    raw.send(Cancel(request_id=99), generate_message(1, prompt_tokens(10), max_tokens=2))
    assert raw.wait_for(Finished).reason == "limit"
    raw.send(Cancel(request_id=1), GetStatus(status_id=5))
    assert raw.wait_for(Status).status_id == 5


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (make_generate(1, b"abc"), "3 bytes are not a whole number"),
        (generate_message(1, [70], num_choices=0), "n is 0, but this server decodes at most 2"),
        (generate_message(1, [70], num_choices=-1), "n is -1"),
    ],
)
def test_requests_that_no_client_sends(
    raw: RawEngine, model: Path, message: Generate, reason: str
) -> None:
    raw.load(model)
    raw.send(message)
    failed = raw.wait_for(Failed)
    assert (failed.request_id, failed.failure.kind) == (1, "InvalidRequest")
    assert reason in failed.failure.message


def test_answers_do_not_wait_for_a_running_prefill(raw: RawEngine, model: Path) -> None:
    """A refusal goes out between two batches, not after the next one."""
    raw.load(model)
    raw.send(
        generate_message(1, prompt_tokens(4000), wants_progress=True),
        generate_message(2, []),
        GetStatus(status_id=1),
    )
    assert raw.wait_for(Failed).request_id == 2
    assert raw.wait_for(Status).counters.num_decode_calls == 0


# --- death and restart ---------------------------------------------------------------------


def test_a_killed_engine_fails_what_waits_and_comes_back(model: Path) -> None:
    with running_engine(model, parallel=2) as engine:
        engine.run(kill_while_streaming(engine))
        assert engine.client.state in ("ready", "restarting")
        with contextlib.suppress(Unavailable):
            wait_until_ready(engine)
        assert engine.ask(prompt_tokens(10), max_tokens=3).reason == "limit"
        assert engine.counters().num_requests == 1
        assert engine.is_idle


async def kill_while_streaming(engine: RunningEngine) -> None:
    client, pid = engine.client, engine.supervisor.pid
    assert pid is not None
    requests = [spec(prompt_tokens(10, seed)) for seed in range(4)]  # two run, two wait
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(client.generate(*one)) for one in requests]
        await anext(streams[0])
        await anext(streams[1])
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDied, match="ended by signal 9"):
                async for _ in stream:
                    pass
        with pytest.raises((Unavailable, EngineDied)):
            await client.get_status()


def test_a_model_file_that_vanishes_is_tried_again_until_it_is_back(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model.read_bytes())
    with running_engine(path, parallel=1) as engine:
        path.rename(tmp_path / "elsewhere.gguf")
        assert engine.supervisor.pid is not None
        os.kill(engine.supervisor.pid, signal.SIGKILL)
        while "does not exist" not in engine.client.failure:
            engine.run(asyncio.sleep(0.02))
        assert engine.client.state == "restarting"
        with pytest.raises(Unavailable, match="being started again"):
            engine.client.generate(*spec([70]))
        (tmp_path / "elsewhere.gguf").rename(path)
        wait_until_ready(engine)
        assert engine.ask([70], max_tokens=1).reason == "limit"


def test_a_model_that_cannot_be_loaded_fails_for_good(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF but nothing else")

    async def test() -> None:
        client = EngineClient()
        supervisor = Supervisor(client, EngineSettings(model_path=str(path)), LogSettings())
        with pytest.raises(ModelFileError, match="cannot be loaded"):
            await supervisor.start()
        assert client.state == "failed"
        with pytest.raises(Unavailable, match="cannot be loaded"):
            client.generate(*spec([70]))
        await supervisor.stop()

    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def wait_until_ready(engine: RunningEngine) -> None:
    """Wait until the engine has loaded its model, again."""
    while engine.client.state != "ready":
        engine.run(asyncio.sleep(0.02))

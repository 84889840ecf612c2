"""Entry of an engine process: say hello, load a model, run the loop.

Started by `milepost.workers.supervisor` as `python -m milepost.engine.main FD`, where FD is its
end of a socket pair. Ends when the front end says so, or is gone.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from milepost.cache.eviction_policies import POLICIES, MakePolicy
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.traits import CacheLimits, CacheTraits
from milepost.config import EngineSettings, LogSettings
from milepost.engine.connection import Connection, ConnectionClosed
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.disk import attach_disk
from milepost.engine.loop import Loop
from milepost.engine.media.model import choose_probed, load_projector, make_media
from milepost.engine.memory_probe import MemoryProbe
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.slots import choose_num_parked
from milepost.engine.threads import count_physical_cores
from milepost.errors import ConfigurationError, MilepostError, ProtocolError
from milepost.libllama import (
    Batch,
    Context,
    ContextParams,
    Library,
    Model,
    ModelParams,
    open_library,
)
from milepost.libllama.media import Projector
from milepost.libllama.state import StateIO
from milepost.logs import set_up_logging
from milepost.protocol.failure import describe_failure
from milepost.protocol.framing import front_end_reader
from milepost.protocol.messages import (
    PROTOCOL_VERSION,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    Ready,
    ToEngine,
)

# The reader thread needs the GIL for microseconds; the default interval of 5 ms would add to a
# decode step whenever it wakes up (measured: 32 -> 27 tokens/s with a busy thread).
SWITCH_INTERVAL_S = 0.0005
NUM_EXTRA_SEQUENCES = 2  # one for states that are put together, one for StateIO
NUM_TRIAL_TOKENS = 32  # of a context that is only made to look at a state
NO_LIMIT = -1  # of --cache-ram
MAX_DEFAULT_CACHE_BYTES = 8 << 30  # llama-server's default
EVICTION_POLICY = "MILEPOST_EVICTION_POLICY"  # variable of the environment; no setting of users
PROGRESS_STEP = 0.01  # fraction of the weights between two LoadProgress messages

logger = logging.getLogger(__name__)


def main() -> int:
    """Run one engine process; returns its exit status."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    connection = Connection(socket.socket(fileno=int(sys.argv[1])), front_end_reader())
    try:
        serve(connection)
    except ConnectionClosed:
        return 0
    except MilepostError as error:
        logger.debug("%s", error)  # the front end was told, and tells the user
        return 1
    except Exception:
        logger.exception("the engine process ends: an error of its own")
        return 1
    finally:
        connection.close()
    return 0


def serve(connection: Connection) -> None:
    """Load the model that the front end names, and serve it until the end."""
    library = open_library_or_report(connection)
    send_now(
        connection,
        Hello(protocol_version=PROTOCOL_VERSION, pid=os.getpid(), library=library.name),
    )
    first, *rest = connection.receive(wait=True)
    started_s = time.perf_counter()
    try:
        settings, log_settings = parse_load(first, rest)
        set_up_logging(log_settings)
        model = load_model(library, settings, progress_reporter(connection))
        constraints = ConstraintMaker(model)
        constraints.prepare()  # what follows is native code for the most part
        num_parked = choose_parked(model, settings)
        context = make_context(model, settings, num_parked)
        context.warm_up(Batch(library, 1))
        projector = load_projector(model, settings)
        runtime = make_runtime(context, settings, num_parked, projector)
    except MilepostError as error:
        send_now(connection, LoadFailed(failure=describe_failure(error)))
        raise
    gc.disable()  # a tree of many thousand objects is made: nothing of it is garbage
    attach_disk(runtime.cache, settings, library.name, runtime.traits)
    if projector is not None:
        media = make_media(projector, settings, runtime, connection.wake)
        runtime = dataclasses.replace(runtime, media=media)
    connection.use_abort_flag(context.abort_flag)
    info = model_info(runtime, settings, time.perf_counter() - started_s)
    send_now(connection, Ready(model=info))
    gc.enable()
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked at again
    loop = Loop(runtime, connection, settings, time.perf_counter, constraints)
    try:
        loop.run()
    finally:
        loop.close()
        constraints.close()
        context.close()
        model.close()


def parse_load(first: ToEngine, rest: Sequence[ToEngine]) -> tuple[EngineSettings, LogSettings]:
    """Return the settings in the first message; raises ProtocolError when it is no good Load."""
    if not isinstance(first, Load) or rest:
        raise ProtocolError(f"the first message is a {type(first).__name__} instead of a Load")
    try:
        return (
            msgspec.msgpack.decode(first.settings, type=EngineSettings),
            msgspec.msgpack.decode(first.log_settings, type=LogSettings),
        )
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the settings in Load cannot be understood: {error}") from error


def open_library_or_report(connection: Connection) -> Library:
    """Open the native library; a failure is also told to the front end."""
    try:
        return open_library()
    except MilepostError as error:
        send_now(connection, LoadFailed(failure=describe_failure(error)))
        raise


def load_model(
    library: Library, settings: EngineSettings, on_progress: Callable[[float], None]
) -> Model:
    """Load the weights. Raises ModelFileError or ConfigurationError."""
    params = ModelParams(
        n_gpu_layers=settings.n_gpu_layers,
        split_mode=settings.split_mode,
        main_gpu=settings.main_gpu,
        tensor_split=settings.tensor_split,
        load_mode=settings.chosen_load_mode,
        check_tensors=settings.check_tensors,
    )
    model = Model(library, Path(settings.model_path), params, on_progress)
    if not model.can_generate:
        model.close()
        raise ConfigurationError(
            f"{settings.model_path} ({model.description}) does not continue texts: milepost serves "
            "decoder-only language models"
        )
    return model


def choose_parked(model: Model, settings: EngineSettings) -> int:
    """Return how many conversations may stay in the KV cache without a slot."""
    if settings.parked_slots >= 0:
        return settings.parked_slots
    has_small_window = model.num_window_tokens > 0 and not settings.swa_full
    state_bytes = measure_state_bytes(model) if model.is_hybrid or model.is_recurrent else 0
    return choose_num_parked(
        state_bytes, cache_budget_bytes(settings), has_small_window=has_small_window
    )


def measure_state_bytes(model: Model) -> int:
    """Return the size of a recurrent state, with the attention cells of one token."""
    params = ContextParams(
        num_context_tokens=NUM_TRIAL_TOKENS,
        num_batch_tokens=NUM_TRIAL_TOKENS,
        num_ubatch_tokens=NUM_TRIAL_TOKENS,
        num_sequences=1,
        num_threads=1,
        num_threads_batch=1,
    )
    batch = Batch(model.library, 1)
    with Context(model, params) as context:
        batch.add_token(max(model.vocab.bos_token, 0), 0, 0)
        context.decode(batch)
        return len(StateIO(context, scratch=0).read_whole(0))


def make_context(model: Model, settings: EngineSettings, num_parked: int) -> Context:
    """Make the context for all parallel requests."""
    threads = settings.threads if settings.threads > 0 else count_physical_cores()
    batch = max(settings.batch_size, settings.parallel)
    return Context(
        model,
        ContextParams(
            num_context_tokens=settings.ctx_size or model.num_context_train_tokens,
            num_batch_tokens=batch,
            # A token of each decoding sequence must fit into one micro-batch (decision 0005).
            num_ubatch_tokens=max(min(settings.ubatch_size, batch), settings.parallel),
            num_sequences=settings.parallel + num_parked + NUM_EXTRA_SEQUENCES,
            num_threads=threads,
            num_threads_batch=settings.threads_batch if settings.threads_batch > 0 else threads,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attn=settings.flash_attn,
            swa_full=settings.swa_full,
            kv_offload=settings.kv_offload,
            op_offload=settings.op_offload,
            rope_scaling=settings.rope_scaling,
            rope_freq_base=settings.rope_freq_base,
            rope_freq_scale=settings.chosen_rope_freq_scale,
            yarn_orig_ctx=settings.yarn_orig_ctx,
            yarn_ext_factor=settings.yarn_ext_factor,
            yarn_attn_factor=settings.yarn_attn_factor,
            yarn_beta_fast=settings.yarn_beta_fast,
            yarn_beta_slow=settings.yarn_beta_slow,
        ),
    )


def make_runtime(
    context: Context,
    settings: EngineSettings,
    num_parked: int,
    projector: Projector | None = None,
) -> ModelRuntime:
    """Learn what the context can do, and put the cache beside it."""
    states = StateIO(context, scratch=context.num_sequences - 1)
    media = choose_probed(projector, context.num_ubatch_tokens) if projector else None
    traits = MemoryProbe(context, states, swa_full=settings.swa_full, media=media).run()
    logger.info("memory: %s", traits.describe())
    cache_traits = CacheTraits(traits.kind, traits.has_segments, traits.has_states)
    limits = CacheLimits(cache_budget_bytes(settings), max_checkpoints=settings.ctx_checkpoints)
    cache = PrefixCache(cache_traits, limits, choose_eviction_policy(os.environ))
    return ModelRuntime(context, states, traits, cache, num_parked)


def choose_eviction_policy(environment: Mapping[str, str]) -> MakePolicy:
    """Return what ranks stored states; another one than milepost's own is for benchmarks alone.

    Raises:
        ConfigurationError: the environment names one that there is not.
    """
    name = environment.get(EVICTION_POLICY, "worth")
    if name not in POLICIES:
        raise ConfigurationError(f"{EVICTION_POLICY} is {name}; it can be {', '.join(POLICIES)}")
    return POLICIES[name]


def cache_budget_bytes(settings: EngineSettings) -> int:
    """Return how many bytes of RAM the cache may hold."""
    if settings.cache_ram >= 0:
        return settings.cache_ram << 20
    if settings.cache_ram == NO_LIMIT:
        return sys.maxsize
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory_bytes // 4, MAX_DEFAULT_CACHE_BYTES)


def model_info(runtime: ModelRuntime, settings: EngineSettings, load_s: float) -> ModelInfo:
    """Return what the front end needs to know about the loaded model."""
    context, traits = runtime.context, runtime.traits
    model = context.model
    devices = [device.name for device in model.library.devices() if not device.is_cpu]
    uses_devices = devices and settings.n_gpu_layers != 0
    return ModelInfo(
        description=model.description,
        size_bytes=model.size_bytes,
        num_params=model.num_params,
        num_vocab=model.vocab.num_tokens,
        num_embd=model.num_embd,
        num_layers=model.num_layers,
        num_context_train_tokens=model.num_context_train_tokens,
        num_context_tokens=context.num_context_tokens,
        num_parallel=settings.parallel,
        num_batch_tokens=context.num_batch_tokens,
        num_ubatch_tokens=context.num_ubatch_tokens,
        memory_kind=traits.kind,
        num_window_tokens=model.num_window_tokens if traits.kind == "window" else 0,
        device=", ".join(devices) if uses_devices else "CPU",
        load_s=load_s,
        cache_folder=str(runtime.cache.disk_folder or ""),
        has_vision=runtime.media is not None and runtime.media.projector.has_vision,
        has_audio=runtime.media is not None and runtime.media.projector.has_audio,
        audio_sample_rate=runtime.media.projector.audio_sample_rate if runtime.media else 0,
    )


def progress_reporter(connection: Connection) -> Callable[[float], None]:
    """Return a function that sends the loaded fraction, at most a hundred times."""
    sent = 0.0

    def report(fraction: float) -> None:
        nonlocal sent
        if fraction - sent >= PROGRESS_STEP or fraction >= 1:
            sent = fraction
            send_now(connection, LoadProgress(fraction=fraction))

    return report


def send_now(connection: Connection, message: Hello | LoadProgress | Ready | LoadFailed) -> None:
    """Send one message and wait until it is written."""
    connection.send(message)
    connection.flush()


if __name__ == "__main__":
    sys.exit(main())

"""The parts that the loop works with, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from milepost.config import EngineSettings
from milepost.engine.admission import Admission
from milepost.engine.cache_control import CacheControl
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.connection import Connection
from milepost.engine.constraints import ConstraintMaker
from milepost.engine.decoding import Decoder
from milepost.engine.disk import make_fingerprint
from milepost.engine.media.feed import MediaFeed
from milepost.engine.model_runner import ModelRunner, batch_limits
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.persistence import Persister
from milepost.engine.prefill_plan import placement_limits
from milepost.engine.reporting import Reporter, Totals
from milepost.engine.restoring import Restorer
from milepost.engine.scheduler import Scheduler
from milepost.engine.slot_files import SlotFiles
from milepost.engine.slots import SlotTable
from milepost.engine.statistics import Statistics


@dataclass(frozen=True, slots=True, eq=False)
class EngineParts:
    """One of each, all of them for the loop's thread."""

    runtime: ModelRuntime
    connection: Connection
    clock: Callable[[], float]  # seconds, from any begin
    statistics: Statistics
    totals: Totals
    slots: SlotTable
    admission: Admission
    scheduler: Scheduler
    runner: ModelRunner
    decoder: Decoder
    media: MediaFeed
    restorer: Restorer
    checkpointer: Checkpointer
    persister: Persister
    cache_control: CacheControl
    slot_files: SlotFiles


def make_parts(
    runtime: ModelRuntime,
    connection: Connection,
    settings: EngineSettings,
    clock: Callable[[], float],
    constraints: ConstraintMaker | None = None,
) -> EngineParts:
    """Put the parts together around a loaded model."""
    context, traits = runtime.context, runtime.traits
    statistics = Statistics()
    slots = SlotTable(context, settings.parallel, runtime.states, runtime.num_parked)
    counters = statistics.counters
    checkpointer = Checkpointer(runtime, counters, clock)
    restorer = Restorer(runtime, slots, statistics, clock)
    constraints = constraints or ConstraintMaker(context.model)
    placement = placement_limits(settings)
    admission = Admission(runtime, slots, restorer, constraints, placement, clock)
    limits = batch_limits(context, traits)
    persister = Persister(runtime.cache, settings.cache_disk_sync, runtime.prompt_logits, clock)
    reporter = Reporter(context.model.vocab, counters)
    media = MediaFeed(runtime.media, connection.send, counters)
    totals = Totals(counters, runtime.cache)
    return EngineParts(
        runtime=runtime,
        connection=connection,
        clock=clock,
        statistics=statistics,
        totals=totals,
        slots=slots,
        admission=admission,
        scheduler=Scheduler(admission, slots, (restorer, checkpointer), limits, statistics),
        runner=ModelRunner(context, slots, limits, connection, statistics, clock),
        decoder=Decoder(context, reporter, connection.send, clock),
        media=media,
        restorer=restorer,
        checkpointer=checkpointer,
        persister=persister,
        cache_control=CacheControl(runtime, slots, totals, media.clear_embeddings, clock),
        slot_files=SlotFiles(
            runtime,
            slots,
            (checkpointer, persister),
            lambda: make_fingerprint(settings, context.model.library.name, traits).key,
            clock,
        ),
    )

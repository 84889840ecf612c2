"""An engine without a process: it answers every request with the events it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.protocol.cache import (
    CacheAction,
    CacheChanged,
    CacheNode,
    CacheReport,
    CacheSummary,
    Divergence,
)
from milepost.protocol.counters import Counters, DiskSizes, RamSizes
from milepost.protocol.messages import (
    Delta,
    Finished,
    GenerationParams,
    MediaRef,
    ModelInfo,
    PromptInput,
    PromptProgress,
    SlotStatus,
    Status,
    Timings,
    decode_tokens,
)
from milepost.workers.client import MediaContents, WaitingLine

Step = Delta | Finished | PromptProgress | Exception | asyncio.Event  # an event is waited for

MODEL = ModelInfo(
    description="fake 1M F16",
    size_bytes=2_000_000,
    num_params=1_000_000,
    num_vocab=263,
    num_embd=64,
    num_layers=4,
    num_context_train_tokens=2048,
    num_context_tokens=512,
    num_parallel=2,
    num_batch_tokens=256,
    num_ubatch_tokens=64,
    memory_kind="full",
    num_window_tokens=0,
    device="CPU",
    load_s=0.1,
)


def delta(text: str, choice: int = 0, **extra: object) -> Delta:
    """Return a delta with one token per character."""
    tokens = tuple(text.encode())
    return Delta(request_id=1, choice=choice, text=text, tokens=tokens, **extra)  # type: ignore[arg-type]


REPORT = CacheReport(
    source="ram",
    num_reused=4,
    num_restored_bytes=2_500_000,
    restore_ms=1.25,
    num_prefilled=6,
    num_prefill_chunks=2,
    num_checkpoints=1,
    num_known=5,
    num_prefilled_twice=1,
    divergence=Divergence(
        pos=5, message_index=2, role="user", prompt_excerpt="new words", known_excerpt="old words"
    ),
    reason="branch",
)


def finished(reason: str = "eos", choice: int = 0, num_decoded: int = 3) -> Finished:
    """Return the end of a choice whose prompt of 10 tokens was cached by 4."""
    timings = Timings(
        cache_n=4, prompt_n=6, prompt_ms=12.0, predicted_n=num_decoded, predicted_ms=30.0
    )
    return Finished(
        request_id=1,
        choice=choice,
        reason=reason,  # type: ignore[arg-type]
        num_prompt_tokens=10,
        timings=timings,
        cache=REPORT if choice == 0 else None,
    )


@dataclass
class FakeGeneration:
    """One request; `was_left` tells whether the block around it has ended."""

    steps: Sequence[Step]
    was_left: bool = False
    request_id: int = 1

    async def __aenter__(self) -> FakeGeneration:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.was_left = True

    async def __aiter__(self) -> AsyncIterator[Delta | Finished | PromptProgress]:
        for step in self.steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield step


@dataclass(frozen=True)
class Asked:
    """A request to the engine; has the fields of both of its parts."""

    prompt: PromptInput
    params: GenerationParams
    media_contents: MediaContents

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prompt."""
        tokens: list[int] = decode_tokens(self.prompt.tokens).tolist()
        return tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self.prompt if name in PromptInput.__struct_fields__ else self.params, name)


@dataclass
class FakeEngine:
    """Implements what the API uses of `milepost.workers.client.EngineClient`."""

    steps: Sequence[Step] = field(default_factory=lambda: (delta("abc"), finished()))
    state: str = "ready"
    failure: str = ""
    model: ModelInfo | None = MODEL
    specs: list[Asked] = field(default_factory=list)
    generations: list[FakeGeneration] = field(default_factory=list)
    changes: list[tuple[CacheAction, int]] = field(default_factory=list)
    knows_requests: bool = True
    line: WaitingLine = field(default_factory=WaitingLine)
    num_open: int = 0  # requests of others, of one choice

    def check_room(self, num_choices: int) -> None:
        """Raise QueueFull if the line is too long."""
        self.line.check(num_choices, [1] * self.num_open, MODEL.num_parallel)

    def generate(
        self, prompt: PromptInput, params: GenerationParams, media: MediaContents
    ) -> FakeGeneration:
        """Note the request and return its events; the first one has the number 1."""
        self.specs.append(Asked(prompt, params, media))
        self.generations.append(FakeGeneration(self.steps, request_id=len(self.specs)))
        return self.generations[-1]

    async def get_cache(self, max_nodes: int) -> CacheSummary:
        """Return a tree with one edge."""
        node = CacheNode(
            parent=-1,
            start=0,
            end=30,
            saved_until=20,
            checkpoints=((10, "system_end"),),
            num_bytes=500,
            num_children=0,
            num_hits=2,
            idle_s=1.5,
            pins=(10,),
        )
        return CacheSummary(
            query_id=1,
            nodes=(node,) * min(max_nodes, 1),
            num_nodes=1,
            num_tree_tokens=30,
            tree_bytes=120,
            num_kv_cache_tokens=35,
            counters=Counters(num_requests=3, num_ram_restores=2),
            ram=RamSizes(
                num_bytes=500,
                budget_bytes=1000,
                num_segments=1,
                segment_bytes=400,
                num_checkpoints=1,
                checkpoint_bytes=100,
            ),
            disk=DiskSizes(),
        )

    async def count_media(self, media: Sequence[MediaRef]) -> tuple[int, ...]:
        """Return a token for each pixel and sample."""
        return tuple(ref.width * ref.height + ref.num_samples for ref in media)

    async def change_cache(self, action: CacheAction, request_id: int = -1) -> CacheChanged:
        """Note the change and free 500 bytes."""
        self.changes.append((action, request_id))
        return CacheChanged(query_id=1, found=self.knows_requests, freed_bytes=500)

    async def get_status(self) -> Status:
        """Return an idle and a working slot."""
        idle = SlotStatus(
            slot_id=0,
            state="idle",
            request_id=-1,
            num_tokens=20,
            num_prompt_tokens=0,
            num_decoded=0,
        )
        working = SlotStatus(
            slot_id=1,
            state="decode",
            request_id=7,
            num_tokens=15,
            num_prompt_tokens=10,
            num_decoded=5,
        )
        counters = Counters(
            num_requests=3,
            num_prefilled_tokens=60,
            num_decoded_tokens=40,
            num_prefilled_twice_tokens=5,
            num_kv_cache_restores=1,
            num_ram_restores=2,
            num_evicted_segments=4,
        )
        return Status(
            status_id=1,
            slots=(idle, working),
            num_waiting=2,
            counters=counters,
            ram=RamSizes(num_bytes=500),
            disk=DiskSizes(),
        )

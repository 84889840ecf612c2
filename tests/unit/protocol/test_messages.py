"""Every message arrives as it was sent, and none is left out here."""

from __future__ import annotations

import math
import typing

import msgspec
import pytest
from tests.requests import make_generate

from milepost.protocol.cache import (
    CacheChanged,
    CacheNode,
    CacheReport,
    CacheSummary,
    ChangeCache,
    Divergence,
    GetCache,
)
from milepost.protocol.counters import Counters, DiskSizes, RamSizes
from milepost.protocol.failure import Failure
from milepost.protocol.framing import encode_frame, engine_reader, front_end_reader
from milepost.protocol.messages import (
    Boundary,
    Cancel,
    ChangeSlot,
    CountMedia,
    Delta,
    Failed,
    Finished,
    FromEngine,
    GetStatus,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    MediaCounts,
    MediaData,
    MediaRef,
    Message,
    ModelInfo,
    NeedMedia,
    PromptProgress,
    Ready,
    ReasoningLimit,
    Shutdown,
    SlotChanged,
    SlotStatus,
    Status,
    Timings,
    ToEngine,
    TokenLogprob,
)
from milepost.protocol.sampling import SamplingParams

TO_ENGINE: tuple[ToEngine, ...] = (
    Load(settings=b"\x80", log_settings=b""),
    make_generate(
        2**40,
        tokens=b"\x01\x00\x00\x00\xff\xff\x00\x00",
        sampling=SamplingParams(
            samplers=("top_k", "temperature"),
            seed=2**32 - 1,
            temperature=0.5,
            logit_bias=((5, -math.inf), (6, 1.5)),
            dry_sequence_breakers=("\n", "é"),
            grammar='root ::= "🎉"',
            ignore_eos=True,
        ),
        max_tokens=0,
        stop=("a", "\n\n"),
        num_choices=3,
        num_logprobs=0,
        cache_prompt=False,
        wants_progress=True,
        special=True,
        shown_tokens=(3, 4),
        boundaries=(Boundary(1, "message_end", 0, "user"),),
        keeps_prompt_end=True,
        has_new_tools=True,
        constraint='start: "🎉"',
        reasoning=ReasoningLimit(
            start="<think>", end="</think>", is_open=True, max_tokens=9, ending=(1, 2)
        ),
        media=(
            MediaRef(pos=1, kind="image", key=b"\x00" * 32, width=640, height=480),
            MediaRef(pos=2, kind="audio", key=b"\xff" * 32, num_samples=16000),
        ),
    ),
    Cancel(request_id=1),
    GetStatus(status_id=4),
    GetCache(query_id=5, max_nodes=3),
    ChangeCache(query_id=6, action="pin", request_id=7),
    ChangeSlot(query_id=7, slot_id=1, action="save", path="/slots/one.bin"),
    MediaData(key=b"\x01" * 32, data=b"\x00\xff\x80"),
    CountMedia(query_id=8, media=(MediaRef(kind="image", key=b"", width=3, height=2),)),
    Shutdown(),
)
FROM_ENGINE: tuple[FromEngine, ...] = (
    Hello(protocol_version=1, pid=123, library="xllamacpp"),
    LoadProgress(fraction=0.25),
    Ready(
        model=ModelInfo(
            description="llama 135M Q4_1",
            size_bytes=1,
            num_params=2,
            num_vocab=3,
            num_embd=4,
            num_layers=5,
            num_context_train_tokens=6,
            num_context_tokens=7,
            num_parallel=8,
            num_batch_tokens=9,
            num_ubatch_tokens=10,
            memory_kind="window",
            num_window_tokens=11,
            device="CPU",
            load_s=0.5,
            has_vision=True,
            has_audio=True,
            audio_sample_rate=16000,
        )
    ),
    LoadFailed(failure=Failure(kind="ModelFileError", message="é")),
    PromptProgress(request_id=1, num_tokens=9, num_cached=2, num_processed=4, elapsed_ms=1.5),
    NeedMedia(request_id=1, keys=(b"\x01" * 32, b"\x02" * 32)),
    Delta(
        request_id=1,
        choice=2,
        text="",
        tokens=(5, 6),
        logprobs=(
            TokenLogprob(token=5, token_bytes=b"\xc3", logprob=-0.5, top=((5, b"\xff", -0.5),)),
        ),
    ),
    Finished(
        request_id=1,
        choice=1,
        reason="stop_string",
        stop_string="###",
        num_prompt_tokens=3,
        timings=Timings(cache_n=1, prompt_n=2, prompt_ms=3.5, predicted_n=4, predicted_ms=5.5),
        cache=CacheReport(
            source="ram",
            num_reused=1,
            num_restored_bytes=2**40,
            restore_ms=0.5,
            num_prefilled=2,
            num_prefill_chunks=3,
            num_checkpoints=4,
            num_known=2,
            num_prefilled_twice=1,
            num_failed_restores=1,
            num_refused_sources=1,
            divergence=Divergence(
                pos=2, message_index=1, role="user", prompt_excerpt="é", known_excerpt="\ufffd"
            ),
            reason="window_lost",
        ),
    ),
    Failed(
        request_id=1,
        failure=Failure(kind="InvalidRequest", message="no", fields={"param": None}),
    ),
    Status(
        status_id=1,
        slots=(
            SlotStatus(
                slot_id=0,
                state="decode",
                request_id=3,
                num_tokens=4,
                num_prompt_tokens=2,
                num_decoded=2,
            ),
        ),
        num_waiting=1,
        counters=Counters(num_requests=5, prefill_s=0.5),
        ram=RamSizes(num_bytes=2**40),
        disk=DiskSizes(num_bytes=2**41),
    ),
    CacheSummary(
        query_id=1,
        nodes=(
            CacheNode(
                parent=-1,
                start=0,
                end=9,
                saved_until=8,
                checkpoints=((7, "chunk"),),
                num_bytes=6,
                num_children=5,
                num_hits=4,
                idle_s=0.5,
                pins=(7,),
            ),
        ),
        num_nodes=2,
        num_tree_tokens=3,
        tree_bytes=6,
        num_kv_cache_tokens=9,
        counters=Counters(num_ram_restores=1),
        ram=RamSizes(
            budget_bytes=2**60,
            num_segments=4,
            segment_bytes=7,
            num_checkpoints=5,
            checkpoint_bytes=8,
        ),
        disk=DiskSizes(num_bytes=1, num_lost=2),
    ),
    CacheChanged(query_id=1, found=False, freed_bytes=2**40),
    SlotChanged(query_id=7, num_tokens=30_000, num_bytes=2**33, elapsed_ms=12.5),
    MediaCounts(query_id=8, counts=(256, 18), failure=Failure(kind="InvalidRequest", message="no")),
)


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_round_trip_to_the_engine(message: ToEngine) -> None:
    assert list(front_end_reader().feed(encode_frame(message))) == [message]


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_round_trip_from_the_engine(message: FromEngine) -> None:
    assert list(engine_reader().feed(encode_frame(message))) == [message]


def test_every_message_is_tried() -> None:
    assert {type(message) for message in TO_ENGINE + FROM_ENGINE} == set(typing.get_args(Message))


def test_the_tag_is_the_class_name() -> None:
    for message in TO_ENGINE + FROM_ENGINE:
        fields = msgspec.msgpack.decode(encode_frame(message)[4:])
        assert fields["type"] == type(message).__name__


def test_defaults_are_not_sent() -> None:
    message = make_generate(1)
    fields = msgspec.msgpack.decode(encode_frame(message)[4:])
    assert fields == {
        "type": "Generate",
        "request_id": 1,
        "prompt": {"tokens": b""},
        "params": {"sampling": {}},
    }

"""What the front end makes of an engine's messages, without a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.fakes.engine import MODEL
from tests.requests import make_generate, split_request

from milepost.errors import (
    ContextExceeded,
    EngineDied,
    InvalidRequest,
    MilepostError,
    NativeCallFailed,
    QueueFull,
    Unavailable,
)
from milepost.protocol.cache import (
    CacheChanged,
    ChangeCache,
    GetCache,
)
from milepost.protocol.counters import Counters, DiskSizes, RamSizes
from milepost.protocol.failure import Failure, describe_failure
from milepost.protocol.framing import FrameReader, front_end_reader
from milepost.protocol.messages import (
    Cancel,
    CountMedia,
    Delta,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerationParams,
    GetStatus,
    LoadProgress,
    MediaCounts,
    MediaData,
    MediaRef,
    NeedMedia,
    PromptInput,
    Ready,
    Status,
    Timings,
    ToEngine,
)
from milepost.workers.client import EngineClient, MediaContents, WaitingLine

TIMEOUT_S = 10.0
TIMINGS = Timings(cache_n=0, prompt_n=2, prompt_ms=1.0, predicted_n=1, predicted_ms=1.0)
STATUS = Status(
    status_id=0, slots=(), num_waiting=0, counters=Counters(), ram=RamSizes(), disk=DiskSizes()
)


@dataclass
class Wire:
    """Takes the frames that a client writes."""

    sent: list[ToEngine] = field(default_factory=list)
    reader: FrameReader[ToEngine] = field(default_factory=front_end_reader)

    def write(self, data: bytes) -> None:
        self.sent += self.reader.feed(data)


def ready_client(max_waiting: int = -1) -> tuple[EngineClient, Wire]:
    client, wire = EngineClient(WaitingLine(max_waiting)), Wire()
    client.attach(wire.write)
    client.take(Ready(model=MODEL))
    return client, wire


def spec(**fields: Any) -> tuple[PromptInput, GenerationParams]:
    return split_request([1, 2], **fields)


def delta(request_id: int, text: str, choice: int = 0) -> Delta:
    return Delta(request_id=request_id, choice=choice, text=text, tokens=(1,))


def finished(request_id: int, choice: int = 0, reason: FinishReason = "eos") -> Finished:
    return Finished(
        request_id=request_id, choice=choice, reason=reason, num_prompt_tokens=2, timings=TIMINGS
    )


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine; what hangs fails."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def test_events_come_in_order_until_the_last_choice_is_finished() -> None:
    async def test() -> None:
        client, _ = ready_client()
        async with client.generate(*spec(num_choices=2)) as generation:
            events: list[Delta | Finished] = [
                delta(generation.request_id, "a"),
                finished(generation.request_id, choice=1),
                delta(generation.request_id, "b"),
                finished(generation.request_id),
            ]
            for event in events:
                client.take(event)
            assert [event async for event in generation] == events

    run(test)


def test_the_request_goes_out_on_entering() -> None:
    async def test() -> None:
        client, wire = ready_client()
        generation = client.generate(*spec(max_tokens=5, stop=("x",)))
        assert wire.sent == []
        assert generation.num_prompt_tokens == 2
        async with generation:
            pass
        assert wire.sent[0] == make_generate(
            generation.request_id, b"\1\0\0\0\2\0\0\0", max_tokens=5, stop=("x",)
        )

    run(test)


def test_leaving_cancels_what_still_runs_and_nothing_else() -> None:
    async def test() -> None:
        client, wire = ready_client()
        async with client.generate(*spec()) as left:
            pass
        async with client.generate(*spec()) as complete:
            client.take(finished(complete.request_id))
            assert [event.reason async for event in complete if isinstance(event, Finished)]
        assert [message for message in wire.sent if isinstance(message, Cancel)] == [
            Cancel(request_id=left.request_id)
        ]

    run(test)


def test_what_arrives_after_leaving_is_dropped() -> None:
    async def test() -> None:
        client, _ = ready_client()
        async with client.generate(*spec()) as generation:
            pass
        client.take(delta(generation.request_id, "late"))
        client.take(finished(generation.request_id, reason="cancelled"))
        client.take(
            Failed(request_id=generation.request_id, failure=Failure(kind="EngineDied", message=""))
        )

    run(test)


def test_the_rest_of_what_was_cancelled_is_still_told() -> None:
    async def test() -> None:
        client, wire = ready_client()
        events: list[Delta | Finished] = []
        async with client.generate(*spec(num_choices=3)) as generation:
            generation.on_late_event = events.append
            client.take(finished(generation.request_id, choice=1))  # nobody reads it
        late = delta(generation.request_id, "late")
        ends = [finished(generation.request_id, choice, "cancelled") for choice in (2, 0)]
        for event in (late, ends[0], ends[1], late, ends[0]):  # the last ones are too many
            client.take(event)
        assert events == [finished(generation.request_id, choice=1), late, *ends]
        assert wire.sent[1:] == [Cancel(request_id=generation.request_id)]

    run(test)


def test_what_ended_before_it_was_left_is_not_cancelled() -> None:
    async def test() -> None:
        client, wire = ready_client()
        async with client.generate(*spec()) as generation:
            client.take(finished(generation.request_id))
        assert not any(isinstance(message, Cancel) for message in wire.sent)

    run(test)


def test_ids_are_never_reused_across_restarts() -> None:
    async def test() -> None:
        client, wire = ready_client()
        ids = set()
        for _ in range(3):
            for _ in range(5):
                async with client.generate(*spec()) as generation:
                    ids.add(generation.request_id)
            client.detach("restarting")
            client.attach(wire.write)
            client.take(Ready(model=MODEL))
        assert len(ids) == 15

    run(test)


@pytest.mark.parametrize("kind", [InvalidRequest, NativeCallFailed, Unavailable])
def test_a_failure_is_raised_as_its_class(kind: type[MilepostError]) -> None:
    async def test() -> None:
        client, wire = ready_client()
        async with client.generate(*spec(num_choices=3)) as generation:
            client.take(
                Failed(
                    request_id=generation.request_id,
                    failure=Failure(kind=kind.__name__, message="why"),
                )
            )
            with pytest.raises(kind, match=r"^why$"):
                await anext(generation)
            assert [event async for event in generation] == []
        assert not any(isinstance(message, Cancel) for message in wire.sent)

    run(test)


def test_a_prompt_that_is_too_long_keeps_its_numbers() -> None:
    async def test() -> None:
        client, _ = ready_client()
        async with client.generate(*spec()) as generation:
            error = ContextExceeded(2, MODEL.num_context_tokens)
            client.take(Failed(request_id=generation.request_id, failure=describe_failure(error)))
            with pytest.raises(ContextExceeded) as caught:
                await anext(generation)
        assert caught.value.num_prompt_tokens == 2
        assert caught.value.num_context_tokens == MODEL.num_context_tokens

    run(test)


def test_the_end_of_the_process_fails_all_that_wait() -> None:
    async def test() -> None:
        client, _ = ready_client()
        async with client.generate(*spec()) as first, client.generate(*spec()) as second:
            status = asyncio.create_task(client.get_status())
            await asyncio.sleep(0)
            client.take(delta(first.request_id, "text"))
            client.detach("restarting", "it was killed")
            assert await anext(first) == delta(first.request_id, "text")
            for generation in (first, second):
                with pytest.raises(EngineDied, match="it was killed"):
                    await anext(generation)
            with pytest.raises(EngineDied, match="it was killed"):
                await status

    run(test)


def test_what_was_complete_before_the_process_died_stays_complete() -> None:
    async def test() -> None:
        client, _ = ready_client()
        async with client.generate(*spec()) as generation:
            client.take(finished(generation.request_id))
            client.detach("restarting")
            assert [event async for event in generation] == [finished(generation.request_id)]

    run(test)


def test_status_answers_are_matched_by_id() -> None:
    async def test() -> None:
        client, wire = ready_client()
        waiting = [asyncio.create_task(client.get_status()) for _ in range(2)]
        await asyncio.sleep(0)
        ids = [message.status_id for message in wire.sent if isinstance(message, GetStatus)]
        for status_id in reversed(ids):
            client.take(
                Status(
                    status_id=status_id,
                    slots=(),
                    num_waiting=status_id,
                    counters=Counters(),
                    ram=RamSizes(),
                    disk=DiskSizes(),
                )
            )
        assert [(await task).num_waiting for task in waiting] == ids
        client.take(STATUS)  # nobody asked for it

    run(test)


def test_a_cancelled_wait_for_the_status_leaves_nothing_behind() -> None:
    async def test() -> None:
        client, wire = ready_client()
        task = asyncio.create_task(client.get_status())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (asked,) = wire.sent
        assert isinstance(asked, GetStatus)
        client.take(
            Status(
                status_id=asked.status_id,
                slots=(),
                num_waiting=0,
                counters=Counters(),
                ram=RamSizes(),
                disk=DiskSizes(),
            )
        )
        client.detach("restarting")

    run(test)


def test_the_cache_is_asked_and_changed_between_batches() -> None:
    async def test() -> None:
        client, wire = ready_client()
        asked = asyncio.create_task(client.get_cache(7))
        changed = asyncio.create_task(client.change_cache("drop", 5))
        await asyncio.sleep(0)
        question, change = wire.sent
        assert isinstance(question, GetCache)
        assert isinstance(change, ChangeCache)
        assert (question.max_nodes, change.action, change.request_id) == (7, "drop", 5)
        answer = CacheChanged(query_id=change.query_id, freed_bytes=3)
        client.take(answer)
        assert await changed is answer
        client.detach("restarting", "it died")
        with pytest.raises(EngineDied, match="it died"):
            await asked

    run(test)


def test_media_are_sent_when_the_engine_asks_for_them() -> None:
    async def test() -> None:
        client, wire = ready_client()
        media = (MediaRef(pos=1, kind="image", key=b"k", width=1, height=1),)
        async with client.generate(*spec(media=media), MediaContents({b"k": b"rgb"})) as generation:
            request = wire.sent.pop()
            assert isinstance(request, Generate)
            assert request.prompt.media == media
            client.take(NeedMedia(request_id=generation.request_id, keys=(b"k", b"unknown")))
            assert wire.sent == [
                MediaData(key=b"k", data=b"rgb"),
                MediaData(key=b"unknown", data=b""),
            ]
        wire.sent.clear()
        client.take(NeedMedia(request_id=generation.request_id, keys=(b"k",)))  # it was left
        assert wire.sent == [MediaData(key=b"k", data=b"")]

    run(test)


def test_media_of_a_request_that_was_left_come_from_another_one() -> None:
    async def test() -> None:
        client, wire = ready_client()
        media = (MediaRef(pos=0, kind="image", key=b"k", width=1, height=1),)
        asked = (*spec(media=media), MediaContents({b"k": b"rgb"}))
        async with client.generate(*asked) as left:
            pass
        async with client.generate(*spec()), client.generate(*asked):
            wire.sent.clear()
            client.take(NeedMedia(request_id=left.request_id, keys=(b"k",)))
            assert wire.sent == [MediaData(key=b"k", data=b"rgb")]

    run(test)


def test_media_that_are_not_held_are_read_when_the_engine_asks() -> None:
    async def test() -> None:
        client, wire = ready_client()

        async def read(key: bytes) -> bytes:
            if key != b"old":
                raise KeyError(key)
            return b"decoded again"

        contents = MediaContents({b"new": b"held"}, read)
        async with client.generate(*spec(), contents) as generation:
            wire.sent.clear()
            keys = (b"old", b"new", b"unknown")
            client.take(NeedMedia(request_id=generation.request_id, keys=keys))
            for _ in range(3):  # the reading tasks have nothing to wait for
                await asyncio.sleep(0)
            assert wire.sent == [
                MediaData(key=b"new", data=b"held"),
                MediaData(key=b"old", data=b"decoded again"),
                MediaData(key=b"unknown", data=b""),
            ]

    run(test)


def test_media_are_counted_by_the_engine() -> None:
    async def test() -> None:
        client, wire = ready_client()
        image = MediaRef(kind="image", key=b"k", width=1, height=1)
        asked = [asyncio.create_task(client.count_media([image])) for _ in range(2)]
        await asyncio.sleep(0)
        good, bad = wire.sent
        assert isinstance(good, CountMedia)
        assert isinstance(bad, CountMedia)
        client.take(MediaCounts(query_id=good.query_id, counts=(18,)))
        client.take(
            MediaCounts(query_id=bad.query_id, failure=Failure(kind="InvalidRequest", message="no"))
        )
        assert await asked[0] == (18,)
        with pytest.raises(InvalidRequest, match="no"):
            await asked[1]

    run(test)


def test_requests_are_refused_until_the_model_is_loaded() -> None:
    client = EngineClient()
    client.attach(Wire().write)
    client.take(LoadProgress(fraction=0.42))
    with pytest.raises(Unavailable, match=r"loading \(42%\)"):
        client.generate(*spec())
    client.detach("failed", "the file is gone")
    with pytest.raises(Unavailable, match="the file is gone"):
        client.generate(*spec())
    client.detach("restarting", "it died")
    with pytest.raises(Unavailable, match="started again"):
        client.generate(*spec())


def test_a_request_made_before_the_death_is_refused_on_entering() -> None:
    async def test() -> None:
        client, wire = ready_client()
        generation = client.generate(*spec())
        client.detach("restarting")
        with pytest.raises(Unavailable):
            await generation.__aenter__()
        assert wire.sent == []

    run(test)


def test_only_requests_that_wait_and_are_still_wanted_fill_the_queue() -> None:
    async def test() -> None:
        client, _ = ready_client(max_waiting=1)
        first, second, third = (client.generate(*spec()) for _ in range(3))
        async with first, second:
            async with third:  # two have a slot, this one waits
                with pytest.raises(QueueFull, match="1 waiting for 2 slots"):
                    client.check_room(1)
                client.take(finished(first.request_id))  # it is not read yet
                client.check_room(1)
            client.check_room(2)  # the third has left: this would be the only one to wait
            async with client.generate(*spec(num_choices=2)):
                with pytest.raises(QueueFull):
                    client.check_room(1)
        client.check_room(2)

    run(test)

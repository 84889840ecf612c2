"""What `GET /slots` and the metrics show of a running engine."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.engine.reporting import Totals
from milepost.engine.sequence import Choice
from milepost.engine.slots import Slot, SlotTable
from milepost.protocol.messages import SlotState, SlotStatus, Status


def describe_status(
    status_id: int,
    slots: SlotTable,
    running: Sequence[Choice],
    num_waiting: int,
    totals: Totals,
) -> Status:
    """Return the answer to a `GetStatus`."""
    by_slot = {choice.slot_id: choice for choice in running}
    return Status(
        status_id=status_id,
        slots=tuple(describe_slot(slot, by_slot.get(slot.slot_id)) for slot in slots.slots),
        num_waiting=num_waiting,
        counters=totals.counters(),
        num_cache_bytes=totals.cache.num_bytes,
    )


def describe_slot(slot: Slot, choice: Choice | None) -> SlotStatus:
    """Return what a slot holds and what its choice, if any, is doing."""
    state: SlotState = "idle"
    if choice is not None:
        state = "prefill" if choice.request.is_prefilling else "decode"
        if choice.state == "paused":
            state = "waiting"
    return SlotStatus(
        slot_id=slot.slot_id,
        state=state,
        request_id=choice.request.request_id if choice else -1,
        num_tokens=slot.num_tokens,
        num_prompt_tokens=len(choice.request.prompt) if choice else 0,
        num_decoded=choice.num_decoded if choice else 0,
    )

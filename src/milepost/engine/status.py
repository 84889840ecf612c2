"""What `GET /slots` and the metrics show of a running engine."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.engine.reporting import Totals
from milepost.engine.sequence import Sequence
from milepost.engine.slots import Slot, SlotTable
from milepost.protocol.messages import SlotState, SlotStatus, Status


def describe_status(
    status_id: int,
    slots: SlotTable,
    running: Mapping[int, Sequence],  # by slot
    num_waiting: int,
    totals: Totals,
) -> Status:
    """Return the answer to a `GetStatus`."""
    return Status(
        status_id=status_id,
        slots=tuple(describe_slot(slot, running.get(slot.slot_id)) for slot in slots.slots),
        num_waiting=num_waiting,
        counters=totals.counters(),
        ram=totals.ram(),
        disk=totals.disk(),
    )


def describe_slot(slot: Slot, sequence: Sequence | None) -> SlotStatus:
    """Return what a slot holds and what its sequence, if any, is doing."""
    state: SlotState = "idle"
    if sequence is not None:
        state = "prefill" if sequence.request.is_prefilling else "decode"
        if sequence.state == "preempted":
            state = "waiting"
    return SlotStatus(
        slot_id=slot.slot_id,
        state=state,
        request_id=sequence.request.request_id if sequence else -1,
        num_tokens=slot.num_tokens,
        num_prompt_tokens=len(sequence.request.prompt) if sequence else 0,
        num_decoded=sequence.num_decoded if sequence else 0,
    )

"""llama-server's slot actions: a slot is written to a file, filled from one, or emptied.

With the disk cache nobody needs them; they are there for scripts written for llama-server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from milepost.arrays import StateBytes, Tokens
from milepost.cache.disk.slot_file import read_slot_file, write_slot_file
from milepost.engine.checkpointing import Checkpointer
from milepost.engine.media.keys import holds_up_to
from milepost.engine.model_runtime import ModelRuntime
from milepost.engine.persistence import Persister
from milepost.engine.slots import Slot, SlotTable
from milepost.errors import (
    InvalidRequest,
    MilepostError,
    NotSupported,
    StateRefused,
    StoredStateLost,
)
from milepost.protocol.failure import describe_failure
from milepost.protocol.messages import ChangeSlot, SlotChanged


class SlotFiles:
    """Carries out `ChangeSlot` on slots that are idle."""

    def __init__(
        self,
        runtime: ModelRuntime,
        slots: SlotTable,
        keepers: tuple[Checkpointer, Persister],
        make_fingerprint: Callable[[], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._checkpointer, self._persister = keepers
        self._make_fingerprint = make_fingerprint
        self._clock = clock
        self._waiting: list[ChangeSlot] = []

    def add_change(self, message: ChangeSlot) -> None:
        """Remember a change until its slot is idle."""
        self._waiting.append(message)

    def change_idle(self) -> list[SlotChanged]:
        """Carry out what waits for slots that are idle now; return the answers."""
        if not self._waiting:
            return []
        ready = [message for message in self._waiting if not self._is_busy(message.slot_id)]
        self._waiting = [message for message in self._waiting if message not in ready]
        return [self._change(message) for message in ready]

    def _is_busy(self, slot_id: int) -> bool:
        return 0 <= slot_id < len(self._slots.slots) and self._slots[slot_id].is_busy

    def _change(self, message: ChangeSlot) -> SlotChanged:
        started_s = self._clock()
        try:
            num_tokens, num_bytes = self._carry_out(message)
        except (MilepostError, OSError) as error:
            if isinstance(error, OSError):
                error = InvalidRequest(str(error))
            return SlotChanged(query_id=message.query_id, failure=describe_failure(error))
        return SlotChanged(
            query_id=message.query_id,
            num_tokens=num_tokens,
            num_bytes=num_bytes,
            elapsed_ms=1000 * (self._clock() - started_s),
        )

    def _carry_out(self, message: ChangeSlot) -> tuple[int, int]:
        if not 0 <= message.slot_id < len(self._slots.slots):
            raise InvalidRequest(
                f"there is no slot {message.slot_id}: this server has {len(self._slots.slots)}",
                param="id_slot",
            )
        slot = self._slots[message.slot_id]
        if message.action == "erase":
            num_tokens = slot.num_tokens
            self._slots.clear_slot(slot)
            return num_tokens, 0
        if not self._runtime.traits.can_restore:
            raise NotSupported("the states of this model cannot be saved")
        if message.action == "save":
            return self._save(slot, Path(message.path))
        return self._restore(slot, Path(message.path))

    def _save(self, slot: Slot, path: Path) -> tuple[int, int]:
        if slot.num_tokens == 0:
            raise InvalidRequest(f"slot {slot.slot_id} holds nothing that could be saved")
        payload = self._runtime.states.read_whole(slot.seq_id)
        key = self._make_fingerprint()
        return slot.num_tokens, write_slot_file(path, slot.held, payload.data, key, time.time())

    def _restore(self, slot: Slot, path: Path) -> tuple[int, int]:
        try:
            tokens, payload = read_slot_file(path, self._make_fingerprint())
        except StoredStateLost as error:
            raise InvalidRequest(f"{path.name} cannot be restored: {error}") from error
        except FileNotFoundError as error:
            raise InvalidRequest(f"there is no file {path.name} to restore") from error
        self._load(slot, tokens, payload)
        self._checkpointer.save(slot, "reply_end")  # for other slots, and for later runs
        self._persister.note(slot.held, slot.num_tokens)
        return slot.num_tokens, len(payload)

    def _load(self, slot: Slot, tokens: Tokens, payload: StateBytes) -> None:
        """Put a state into the spare sequence, and let it take the place of the slot's own."""
        slots, spare_id = self._slots, self._slots.spare_id
        if len(tokens) > slots.num_cells_in_reach:
            raise InvalidRequest(
                f"it holds {len(tokens)} tokens, and there is room for {slots.num_cells_in_reach}"
            )
        slots.park(slot)
        while slots.num_free_cells < len(tokens) and slots.evict_idle():
            pass
        try:
            self._runtime.states.write_whole(spare_id, payload)
            if not holds_up_to(tokens, self._runtime.context.pos_max(spare_id)):
                raise StateRefused("it does not hold the tokens that it names")
        except StateRefused as error:
            slots.clear_seq_id(spare_id)
            raise InvalidRequest(f"the state was refused: {error}") from error
        slots.adopt_spare(slot, tokens)

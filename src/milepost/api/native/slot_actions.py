"""llama-server's `POST /slots/{id}?action=save|restore|erase`."""

from __future__ import annotations

from pathlib import Path, PurePath

from milepost.api.http_body import field_error, parse_body
from milepost.api.native.schemas import (
    SlotErasedAnswer,
    SlotFields,
    SlotRestoredAnswer,
    SlotSavedAnswer,
    SlotTimings,
)
from milepost.api.server import Server
from milepost.errors import InvalidRequest, NotSupported

MAX_NAME_CHARS = 255
SlotAnswer = SlotSavedAnswer | SlotRestoredAnswer | SlotErasedAnswer


async def act_on_slot(server: Server, slot_text: str, action: str, body: bytes) -> SlotAnswer:
    """Carry out an action; raises InvalidRequest or NotSupported."""
    folder = server.settings.slot_save_path
    if not folder:
        raise NotSupported(
            "This server does not support slots action. Start it with `--slot-save-path`"
        )  # llama-server's words: clients look for them
    slot_id = _parse_slot_id(slot_text)
    engine = server.choose_model().engine
    if action == "erase":
        erased = await engine.change_slot(slot_id, "erase")
        return SlotErasedAnswer(id_slot=slot_id, n_erased=erased.num_tokens)
    if action not in ("save", "restore"):
        raise InvalidRequest(f"action is {action!r}; it can be save, restore or erase")
    name = parse_file_name(parse_body(SlotFields, body).filename)
    path = str(Path(folder) / name)
    if action == "save":
        saved = await engine.change_slot(slot_id, "save", path)
        return SlotSavedAnswer(
            id_slot=slot_id,
            filename=name,
            n_saved=saved.num_tokens,
            n_written=saved.num_bytes,
            timings=SlotTimings(save_ms=saved.elapsed_ms),
        )
    restored = await engine.change_slot(slot_id, "restore", path)
    return SlotRestoredAnswer(
        id_slot=slot_id,
        filename=name,
        n_restored=restored.num_tokens,
        n_reusable=restored.num_tokens,
        n_read=restored.num_bytes,
        timings=SlotTimings(restore_ms=restored.elapsed_ms),
    )


def parse_file_name(name: str | None) -> str:
    """Return a name that cannot leave its folder; raises InvalidRequest."""
    is_plain = (
        name
        and len(name) <= MAX_NAME_CHARS
        and name.isprintable()
        and not name.startswith(".")
        and not set(name) & set('/\\:*?"<>|')
        and PurePath(name).name == name
    )
    if not is_plain or name is None:
        raise field_error("filename", "must be the plain name of a file", name)
    return name


def _parse_slot_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"the slot must be a number, but is {text!r}") from None

"""Reads calls whose name stands before the JSON of the arguments.

functions.read:0<|tool_call_argument_begin|>{"path": "a.py"}
"""

from __future__ import annotations

from milepost.chat.formats.json_text import copy_arguments
from milepost.chat.formats.reply_format import NamedJsonBody
from milepost.chat.formats.reply_writer import MAX_NAME_CHARS, ReplyWriter
from milepost.chat.formats.text_source import Malformed, Steps, Stops, TextSource

MAX_HEAD_CHARS = 2 * MAX_NAME_CHARS  # a name and an id


def read_named_json_call(
    source: TextSource, body: NamedJsonBody, writer: ReplyWriter
) -> Steps[None]:
    """Read one call."""
    yield from source.expect_after_space(body.name_start.strip())
    name_end = body.name_end.strip()
    stop = name_end or "{"
    head, _ = yield from source.read_until(Stops([stop]), MAX_HEAD_CHARS)
    if not name_end:
        source.back(len(stop))
    name, call_id = _split_head(head.strip(), body)
    if (yield from source.peek_after_space()) not in '{"n':
        raise Malformed("the arguments are missing")
    writer.begin_call(name, call_id)
    yield from copy_arguments(source, writer.arguments)
    writer.end_call()
    yield from source.match_after_space((body.arguments_end.strip(),))


def _split_head(head: str, body: NamedJsonBody) -> tuple[str, str]:
    """Return name and id; the id is all of the text where it begins with the name.

    Kimi's `functions.read:0` is the id of a call to `read`.
    """
    id_start = body.id_start.strip()
    if not id_start or id_start not in head:
        return head, ""
    name, _, call_id = head.rpartition(id_start)
    if body.name_start.strip():
        call_id = f"{body.name_start.strip()}{name}{id_start}{call_id}"
    return name.strip(), call_id.strip()

"""Writes tool calls as text in a model's own format, where its template does not.

For histories, and for the example in a description of tools. Belongs to `tool_fallback`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.reply_format import (
    CallBody,
    JsonBody,
    NamedJsonBody,
    PythonicBody,
    TaggedBody,
    ToolCallFormat,
)

PYTHON_WORDS = {True: "True", False: "False", None: "None"}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as it is to be written."""

    name: str
    arguments: Mapping[str, Any]
    arguments_text: str  # their JSON text as it arrived: the model's own spacing, mostly
    call_id: str = ""


def can_write(body: CallBody) -> bool:
    """Say whether calls of this body can be written here."""
    return isinstance(body, JsonBody | NamedJsonBody | TaggedBody | PythonicBody)


def write_calls(form: ToolCallFormat, calls: Sequence[WrittenCall]) -> str:
    """Return calls as the model would write them; `can_write` holds for the body."""
    body = form.body
    if isinstance(body, PythonicBody) or (isinstance(body, JsonBody) and body.in_list):
        listed = ", ".join(_write_body(body, call) for call in calls)
        return (
            form.section.start
            + form.call.start
            + f"[{listed}]"
            + form.call.end
            + (form.section.end)
        )
    # JSON stands in lines of its own, as all templates with such tags write it.
    line = "\n" if isinstance(body, JsonBody) and form.call.start else ""
    written = (
        f"{form.call.start}{line}{_write_body(body, call)}{line}{form.call.end}" for call in calls
    )
    return form.section.start + (form.separator or line).join(written) + form.section.end


def _write_body(body: CallBody, call: WrittenCall) -> str:
    if isinstance(body, JsonBody):
        return _write_json(body, call)
    if isinstance(body, NamedJsonBody):
        call_id = body.id_start + call.call_id if body.id_start else ""
        # A line break at the end of arguments is not kept in the format; fenced blocks have one.
        line = "\n" if body.arguments_end and body.name_end.endswith("\n") else ""
        opening = body.name_start + call.name + call_id + body.name_end
        return opening + call.arguments_text + line + body.arguments_end
    if isinstance(body, TaggedBody):
        pairs = "".join(_write_tagged(body, key, value) for key, value in call.arguments.items())
        return body.name_start + call.name + body.name_end + pairs + body.arguments_end
    assert isinstance(body, PythonicBody), f"{body} cannot be written"
    pairs = ", ".join(f"{key}={_python(value)}" for key, value in call.arguments.items())
    return f"{call.name}({pairs})"


def _write_json(body: JsonBody, call: WrittenCall) -> str:
    arguments = _quote(call.arguments_text) if body.arguments_are_text else call.arguments_text
    written = f'{{"{body.name_key}": {_quote(call.name)}, "{body.arguments_key}": {arguments}'
    if body.wrapper_key:
        written = f'{{"type": "function", "{body.wrapper_key}": {written}}}'
    if body.id_key:
        written += f', "{body.id_key}": {_quote(call.call_id)}'
    return written + "}"


def _write_tagged(body: TaggedBody, key: str, value: Any) -> str:
    if isinstance(value, str):
        return body.key_start + key + body.key_end + value + body.value_end
    key_end = body.json_key_end or body.key_end
    return body.key_start + key + key_end + _quote(value) + body.value_end


def _python(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return PYTHON_WORDS[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quote(key)}: {_python(item)}' for key, item in value.items())}}}"
    return _quote(value)


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

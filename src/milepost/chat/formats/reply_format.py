"""How a model writes its replies: where reasoning stands, and what tool calls look like.

Learnt from a template by `reply_probe`, read by `stream_parser`, written by `grammar`. A format
that no template shows fully has a body of its own here, and a module in `tool_formats`.

    reasoning.start  …  reasoning.end   text   section.start
      call.start  body  call.end   separator   call.start  body  call.end
    section.end
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What becomes of the reasoning of earlier replies when they are history.
EarlierReasoning = Literal["kept", "dropped_before_last_user", "dropped", "unknown"]


@dataclass(frozen=True, slots=True)
class Affix:
    """What stands before and behind something; each may be empty."""

    start: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Where reasoning stands in a reply; a prompt may already hold its start."""

    start: str  # "<think>", without the white space around it
    end: str  # "</think>"
    earlier: EarlierReasoning = "unknown"


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A call is one JSON object: `{"name": …, "arguments": {…}}`.

    Qwen2.5, Qwen3, Hermes, Granite, SmolLM3; Llama 3 without affixes; in a list: Mistral Nemo,
    Nemotron, LFM2.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""  # empty: calls have no ids
    wrapper_key: str = ""  # `{"function": {"name": …}}`; empty: none
    in_list: bool = False  # the section is one JSON list of all calls
    arguments_are_text: bool = False  # JSON in a JSON string


@dataclass(frozen=True, slots=True)
class NamedJsonBody:
    """The name stands before the JSON of the arguments.

    DeepSeek: `NAME<｜tool▁sep｜>{…}`; Kimi: `functions.NAME:0<|tool_call_argument_begin|>{…}`;
    Mistral Small 3.2: `NAME[CALL_ID]ID[ARGS]{…}`; R1 puts the JSON into a fenced block.
    """

    name_start: str = ""  # "functions."
    name_end: str = ""  # what separates the name, or name and id, from the arguments
    id_start: str = ""  # "[CALL_ID]", ":"; empty: calls have no ids
    arguments_end: str = ""  # behind the JSON, before `call.end`


@dataclass(frozen=True, slots=True)
class TaggedBody:
    """Each argument stands in tags of its own; strings raw, other values as JSON.

    Qwen3-Coder, Qwen3.5, StepFun, Seed-OSS: `<function=NAME><parameter=KEY>VALUE</parameter>`;
    MiniMax: `<invoke name="NAME">`; GLM: `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`;
    DeepSeek V3.2: `<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>`, with
    `string="false"` before JSON.
    White space between tags is of no meaning; one line break next to a value belongs to the tags
    where the template writes one there.
    """

    name_start: str = ""  # "<function="
    name_end: str = ""  # ">\n"
    key_start: str = ""  # "<parameter="
    key_end: str = ""  # ">\n", all up to the value
    json_key_end: str = ""  # the same before values that are no strings, if it is different there
    value_end: str = ""  # "\n</parameter>\n"
    arguments_end: str = ""  # "</function>"


@dataclass(frozen=True, slots=True)
class HarmonyBody:
    """gpt-oss: `<|channel|>commentary to=functions.NAME <|message|>{…}`."""


@dataclass(frozen=True, slots=True)
class PythonicBody:
    """Calls as Python writes them: `[name(key="value", other=1)]` (LFM2, Llama 4)."""


@dataclass(frozen=True, slots=True)
class BracedBody:
    """`call:NAME{key:<|"|>text<|"|>,other:1}`, as Gemma 4 writes them."""

    name_start: str = "call:"
    quote: str = '<|"|>'


CallBody = JsonBody | NamedJsonBody | TaggedBody | HarmonyBody | PythonicBody | BracedBody


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """What tool calls look like in a reply."""

    body: CallBody
    section: Affix = field(default_factory=Affix)  # around all calls of a reply
    call: Affix = field(default_factory=Affix)  # around each
    separator: str = ""  # between two calls, as far as it is not white space
    takes_several: bool = True  # the template renders more than one call in a message


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model writes its replies; all of it plain text where nothing is set."""

    reasoning: ReasoningFormat | None = None
    tool_calls: ToolCallFormat | None = None
    content: Affix = field(default_factory=Affix)  # around the text of a reply (Command R7B)

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that a parser looks for; their control tokens must be spelled out."""
        return tuple(dict.fromkeys(text for text in _markers(self) if text))


def _markers(reply: ReplyFormat) -> list[str]:
    found = [reply.content.start, reply.content.end]
    if reply.reasoning is not None:
        found += [reply.reasoning.start, reply.reasoning.end]
    calls = reply.tool_calls
    if calls is not None:
        found += [calls.section.start, calls.section.end, calls.call.start, calls.call.end]
        found += [calls.separator]
        body = calls.body
        if isinstance(body, NamedJsonBody):
            found += [body.name_start, body.name_end, body.id_start, body.arguments_end]
        elif isinstance(body, TaggedBody):
            found += [body.name_start, body.name_end, body.key_start, body.key_end]
            found += [body.json_key_end, body.value_end, body.arguments_end]
        elif isinstance(body, BracedBody):
            found += [body.quote]
        elif isinstance(body, HarmonyBody):
            found += ["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"]
    return found

"""Golden replies: how models of each family write, and what is read out of it.

The formats are those that the published templates of the families show; `merge` makes one event of
neighbours of a kind, so that samples do not depend on how a reply is cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.braced_calls import BracedBody
from milepost.chat.formats.harmony import HarmonyBody
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.named_json_calls import NamedJsonBody
from milepost.chat.formats.pythonic_calls import PythonicBody
from milepost.chat.formats.reply_events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ParseWarning,
    ReasoningText,
    ReplyEvent,
)
from milepost.chat.formats.reply_format import Affix, ReasoningFormat, ReplyFormat, ToolCallFormat
from milepost.chat.formats.tagged_calls import TaggedBody

THINK = ReasoningFormat("<think>", "</think>")


def make_tool(name: str, **properties: Any) -> dict[str, Any]:
    """Return a tool as OpenAI writes it, with these arguments."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    make_tool("read", path={"type": "string"}, line={"type": "integer"}),
    make_tool(
        "edit",
        path={"type": "string"},
        text={"type": "string"},
        ranges={"type": "array", "items": {"type": "integer"}},
        options={"type": "object"},
        dry={"type": "boolean"},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    make_tool("list_files"),
]


@dataclass(frozen=True, slots=True)
class ReplySample:
    """A reply and its events, merged, with ids `made-0`, `made-1`, … where the model wrote none."""

    name: str
    reply_format: ReplyFormat
    text: str
    events: tuple[ReplyEvent, ...]
    in_reasoning: bool = False


def merge(events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
    """Return the events with neighbours of a kind as one."""
    merged: list[ReplyEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, ContentText) and isinstance(last, ContentText):
            merged[-1] = ContentText(last.text + event.text)
        elif isinstance(event, ReasoningText) and isinstance(last, ReasoningText):
            merged[-1] = ReasoningText(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            assert event.index == last.index
            merged[-1] = CallArguments(event.index, last.text + event.text)
        else:
            merged.append(event)
    return merged


def call(index: int, name: str, arguments: str, call_id: str = "") -> tuple[ReplyEvent, ...]:
    """Return the events of a whole call."""
    start = CallStart(index, call_id or f"made-{index}", name)
    return start, CallArguments(index, arguments), CallEnd(index)


def content(text: str) -> ContentText:
    """Return text of the reply."""
    return ContentText(text)


def reasoning(text: str) -> ReasoningText:
    """Return reasoning."""
    return ReasoningText(text)


QWEN3 = ReplyFormat(
    THINK, ToolCallFormat(JsonBody(), call=Affix("<tool_call>\n", "\n</tool_call>"))
)
QWEN25 = ReplyFormat(tool_calls=QWEN3.tool_calls)
LLAMA3 = ReplyFormat(tool_calls=ToolCallFormat(JsonBody(arguments_key="parameters")))
MISTRAL_NEMO = ReplyFormat(
    tool_calls=ToolCallFormat(JsonBody(id_key="id", in_list=True), section=Affix("[TOOL_CALLS]"))
)
MISTRAL_SMALL = ReplyFormat(
    tool_calls=ToolCallFormat(
        NamedJsonBody(name_end="[ARGS]", id_start="[CALL_ID]"), call=Affix("[TOOL_CALLS]")
    )
)
NEMOTRON = ReplyFormat(
    THINK, ToolCallFormat(JsonBody(in_list=True), section=Affix("<TOOLCALL>", "</TOOLCALL>"))
)
COMMAND_R7B = ReplyFormat(
    ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
    ToolCallFormat(
        JsonBody("tool_name", "parameters", id_key="tool_call_id", in_list=True),
        section=Affix("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    Affix("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
WRAPPED = ReplyFormat(
    tool_calls=ToolCallFormat(
        JsonBody(wrapper_key="function", id_key="id", arguments_are_text=True),
        call=Affix("<call>", "</call>"),
    )
)
APERTUS = ReplyFormat(
    tool_calls=ToolCallFormat(
        NamedJsonBody(name_end='": ', arguments_end="}"),
        section=Affix("<|tools_prefix|>[", "]<|tools_suffix|>"),
        call=Affix('{"', ""),
        separator=",",
    )
)
KIMI = ReplyFormat(
    tool_calls=ToolCallFormat(
        NamedJsonBody("functions.", "<|tool_call_argument_begin|>", ":"),
        section=Affix("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=Affix("<|tool_call_begin|>", "<|tool_call_end|>"),
    )
)
DEEPSEEK = ReplyFormat(
    THINK,
    ToolCallFormat(
        NamedJsonBody(name_end="<｜tool▁sep｜>"),
        section=Affix("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call=Affix("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    ),
)
DEEPSEEK_R1 = ReplyFormat(
    THINK,
    ToolCallFormat(
        NamedJsonBody("function<｜tool▁sep｜>", "\n```json\n", "", "\n```"),
        section=Affix("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call=Affix("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        separator="\n",
    ),
)
QWEN3_CODER = ReplyFormat(
    tool_calls=ToolCallFormat(
        TaggedBody(
            "<function=",
            ">\n",
            "<parameter=",
            ">\n",
            value_end="\n</parameter>\n",
            arguments_end="</function>",
        ),
        call=Affix("<tool_call>\n", "\n</tool_call>"),
    )
)
QWEN35 = ReplyFormat(THINK, QWEN3_CODER.tool_calls)
SEED_OSS = ReplyFormat(
    ReasoningFormat("<seed:think>", "</seed:think>"),
    ToolCallFormat(
        TaggedBody("<function=", ">\n", "<parameter=", ">", "", "</parameter>\n", "</function>"),
        call=Affix("<seed:tool_call>\n", "\n</seed:tool_call>"),
    ),
)
MINIMAX = ReplyFormat(
    THINK,
    ToolCallFormat(
        TaggedBody(
            '<invoke name="', '">\n', '<parameter name="', '">', "", "</parameter>\n", "</invoke>\n"
        ),
        section=Affix("\n<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
)
DEEPSEEK_V32 = ReplyFormat(
    THINK,
    ToolCallFormat(
        TaggedBody(
            '<｜DSML｜invoke name="',
            '">\n',
            '<｜DSML｜parameter name="',
            '" string="true">',
            '" string="false">',
            "</｜DSML｜parameter>\n",
            "</｜DSML｜invoke>",
        ),
        section=Affix("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    ),
)
GLM = ReplyFormat(
    THINK,
    ToolCallFormat(
        TaggedBody("", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "", "</arg_value>\n"),
        call=Affix("\n<tool_call>", "</tool_call>"),
    ),
)
GPT_OSS = ReplyFormat(
    ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>"), ToolCallFormat(HarmonyBody())
)
LFM2 = ReplyFormat(
    tool_calls=ToolCallFormat(
        PythonicBody(), section=Affix("<|tool_call_start|>", "<|tool_call_end|>")
    )
)
LLAMA4 = ReplyFormat(tool_calls=ToolCallFormat(PythonicBody()))
GEMMA4 = ReplyFormat(
    ReasoningFormat("<|channel>thought", "<channel|>"),
    ToolCallFormat(BracedBody(), call=Affix("<|tool_call>", "<tool_call|>")),
)

READ = '{"path": "src/a.py"}'
QWEN_READ = '<tool_call>\n{"name": "read", "arguments": {"path": "src/a.py"}}\n</tool_call>'

SAMPLES = (
    ReplySample("plain", QWEN3, "Hello, world.\n", (content("Hello, world.\n"),)),
    ReplySample("space-at-the-start", QWEN3, "\n  x", (content("\n  x"),)),
    ReplySample(
        "reasoning",
        QWEN3,
        "<think>\nIt is easy.\n\nYes.\n</think>\n\n    indented < answer",
        (reasoning("It is easy.\n\nYes."), content("    indented < answer")),
    ),
    ReplySample(
        "reasoning-open-in-the-prompt",
        QWEN3,
        "It is </easy>.\n</think>\nYes.",
        (reasoning("It is </easy>."), content("Yes.")),
        in_reasoning=True,
    ),
    ReplySample(
        "reasoning-begun-again",
        QWEN3,
        "<think>\nHm.</think>Yes.",
        (reasoning("Hm."), content("Yes.")),
        in_reasoning=True,
    ),
    ReplySample("empty-reasoning", QWEN3, "<think>\n\n</think>\n\nYes.", (content("Yes."),)),
    ReplySample(
        "late-think-is-text",
        QWEN3,
        "The tag <think> begins it, </think> ends it.",
        (content("The tag <think> begins it, </think> ends it."),),
    ),
    ReplySample("only-a-call", QWEN3, QWEN_READ, call(0, "read", READ)),
    ReplySample(
        "reasoning-text-call",
        QWEN3,
        f"<think>\nLook.\n</think>\n\nI look.\n{QWEN_READ}",
        (reasoning("Look."), content("I look."), *call(0, "read", READ)),
    ),
    ReplySample(
        "parallel-calls",
        QWEN25,
        f'{QWEN_READ}\n<tool_call>\n{{"name": "list_files"}}\n</tool_call>\n{QWEN_READ}',
        (*call(0, "read", READ), *call(1, "list_files", "{}"), *call(2, "read", READ)),
    ),
    ReplySample(
        "text-between-and-after-calls",
        QWEN25,
        f"First\n{QWEN_READ}\n\nthen\n{QWEN_READ}\nlast\n",
        (
            content("First"),
            *call(0, "read", READ),
            content("\n\nthen"),
            *call(1, "read", READ),
            content("\nlast"),
        ),
    ),
    ReplySample(
        "text-only-after-a-call",
        QWEN25,
        f"{QWEN_READ}\n\nDone.",
        (*call(0, "read", READ), content("Done.")),
    ),
    ReplySample(
        "call-inside-reasoning",
        QWEN3,
        f"Look first.\n{QWEN_READ}\nThen think on.\n</think>\n\nYes.",
        (reasoning(f"Look first.\n{QWEN_READ}\nThen think on."), content("Yes.")),
        in_reasoning=True,
    ),
    ReplySample(
        "call-in-reasoning-that-never-ends",
        QWEN3,
        f"Look first.\n{QWEN_READ}\n{QWEN_READ}\nDone.",
        (
            reasoning("Look first."),
            *call(0, "read", READ),
            *call(1, "read", READ),
            content("Done."),
        ),
        in_reasoning=True,
    ),
    ReplySample(
        "end-of-reasoning-that-never-began",
        QWEN3,
        "</think>\n\nYes.",
        (content("Yes."),),
    ),
    ReplySample(
        "thinking-of-a-call",
        QWEN3,
        'Write <tool_call>{"name": "other"}</tool_call>?\n</think>\n\nNo.',
        (
            reasoning("Write"),
            ParseWarning("a tool call is not well formed: there is no such tool"),
            reasoning(' <tool_call>{"name": "other"}</tool_call>?'),
            content("No."),
        ),
        in_reasoning=True,
    ),
    ReplySample(
        "keys-in-other-order",
        QWEN25,
        '<tool_call>{"arguments": {"a": [1, {"b": "}]\\""}], "c": -1.5e3}, "name": "read"}'
        "</tool_call>",
        call(0, "read", '{"a": [1, {"b": "}]\\""}], "c": -1.5e3}'),
    ),
    ReplySample(
        "line-breaks-and-foreign-escapes-in-a-string",
        QWEN25,
        '<tool_call>{"name": "edit", "arguments": {"text": "a\n\tb \\d \\\' \\u00e9", "dry": True}}'
        "</tool_call>",
        call(0, "edit", '{"text": "a\\n\\tb \\\\d \' \\u00e9", "dry": true}'),
    ),
    ReplySample(
        "arguments-as-text",
        QWEN25,
        '<tool_call>{"name": "read", "arguments": "{\\"path\\": \\"\\ud83d\\ude00 \\\\\\"\\"}"}'
        "</tool_call>",
        call(0, "read", '{"path": "😀 \\""}'),
    ),
    ReplySample(
        "no-arguments",
        QWEN25,
        '<tool_call>{"name": "list_files", "arguments": null}</tool_call>'
        '<tool_call>{"name": "list_files", "arguments": ""}</tool_call>',
        (*call(0, "list_files", "{}"), *call(1, "list_files", "{}")),
    ),
    ReplySample(
        "arguments-that-are-no-object",
        QWEN25,
        '<tool_call>{"name": "read", "arguments": ["a", 1 ]}</tool_call>',
        call(0, "read", '["a", 1 ]'),
    ),
    ReplySample(
        "brace-forgotten",
        QWEN25,
        '<tool_call>{"name": "read", "arguments": {"path": "src/a.py"}</tool_call>',
        (
            *call(0, "read", READ)[:2],
            ParseWarning("a tool call is complete, but after its arguments ',' is missing"),
            CallEnd(0),
        ),
    ),
    ReplySample(
        "two-calls-in-one-pair-of-tags",
        QWEN25,
        f'<tool_call>\n{{"name": "read", "arguments": {READ}}}\n{{"name": "list_files"}}\n'
        "</tool_call>\n{}",
        (*call(0, "read", READ), *call(1, "list_files", "{}"), content("{}")),
    ),
    ReplySample(
        "no-json",
        QWEN25,
        "Calls stand in <tool_call> tags.\n",
        (
            content("Calls stand in"),
            ParseWarning("a tool call is not well formed: '{' is missing"),
            content(" <tool_call> tags.\n"),
        ),
    ),
    ReplySample(
        "broken-arguments",
        QWEN25,
        '<tool_call>{"name": "read", "arguments": {"path": src}}</tool_call>',
        (
            CallStart(0, "made-0", "read"),
            CallArguments(0, '{"path": '),
            ParseWarning("a tool call is not well formed: a value is no JSON"),
            content("}}</tool_call>"),
        ),
    ),
    ReplySample(
        "llama-3",
        LLAMA3,
        '\n{"name": "read", "parameters": {"path": "src/a.py"}}; {"name": "list_files", '
        '"parameters": {}}',
        (*call(0, "read", READ), *call(1, "list_files", "{}")),
    ),
    ReplySample(
        "llama-3-answers-json",
        LLAMA3,
        ' {"name": "Ada", "parameters": {}}\n',
        (
            ParseWarning("a tool call is not well formed: there is no such tool"),
            content(' {"name": "Ada", "parameters": {}}\n'),
        ),
    ),
    ReplySample(
        "llama-3-answers-other-json",
        LLAMA3,
        '{"type": "list", "items": [{"name": "read", "parameters": {}}]}',
        (
            ParseWarning("a tool call is not well formed: there is a key that no call has"),
            content('{"type": "list", "items": [{"name": "read", "parameters": {}}]}'),
        ),
    ),
    ReplySample(
        "apertus",
        APERTUS,
        'Both.<|tools_prefix|>[{"read": {"path": "src/a.py"}}, {"list_files": {}}]<|tools_suffix|>',
        (content("Both."), *call(0, "read", READ), *call(1, "list_files", "{}")),
    ),
    ReplySample(
        "mistral-nemo",
        MISTRAL_NEMO,
        '[TOOL_CALLS][{"name": "read", "arguments": {"path": "src/a.py"}, "id": "abc123def"}, '
        '{"name": "list_files", "arguments": {}, "id": "abc123deg"}]',
        (*call(0, "read", READ, "abc123def"), *call(1, "list_files", "{}", "abc123deg")),
    ),
    ReplySample(
        "mistral-small",
        MISTRAL_SMALL,
        "I look.[TOOL_CALLS]read[CALL_ID]abc123def[ARGS]" + READ + "[TOOL_CALLS]list_files[ARGS]{}",
        (content("I look."), *call(0, "read", READ, "abc123def"), *call(1, "list_files", "{}")),
    ),
    ReplySample(
        "nemotron",
        NEMOTRON,
        'So.\n</think>\n\n<TOOLCALL>[{"name": "read", "arguments": {"path": "src/a.py"}}, '
        '{"name": "list_files", "arguments": {}}]</TOOLCALL>',
        (reasoning("So."), *call(0, "read", READ), *call(1, "list_files", "{}")),
        in_reasoning=True,
    ),
    ReplySample(
        "command-r7b-call",
        COMMAND_R7B,
        "<|START_THINKING|>Look.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "read", "parameters": {"path": "src/a.py"}}\n'
        "]<|END_ACTION|>",
        (reasoning("Look."), *call(0, "read", READ, "0")),
    ),
    ReplySample(
        "command-r7b-text",
        COMMAND_R7B,
        "<|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        (content("Yes."),),
    ),
    ReplySample(
        "wrapped-json",
        WRAPPED,
        '<call>{"id": "x1", "type": "function", "function": {"name": "read", "arguments": '
        '"{\\"path\\": \\"src/a.py\\"}"}}</call>',
        call(0, "read", READ, "x1"),
    ),
    ReplySample(
        "kimi",
        KIMI,
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0"
        f"<|tool_call_argument_begin|>{READ}<|tool_call_end|><|tool_call_begin|>"
        "functions.list_files:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        (
            content("I look."),
            *call(0, "read", READ, "functions.read:0"),
            *call(1, "list_files", "{}", "functions.list_files:1"),
        ),
    ),
    ReplySample(
        "deepseek",
        DEEPSEEK,
        "Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>"
        f"{READ}<｜tool▁call▁end｜><｜tool▁call▁begin｜>list_files<｜tool▁sep｜>{{}}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (
            reasoning("Hm."),
            content("I look."),
            *call(0, "read", READ),
            *call(1, "list_files", "{}"),
        ),
        in_reasoning=True,
    ),
    ReplySample(
        "deepseek-without-section",
        DEEPSEEK,
        f"<｜tool▁call▁begin｜>read<｜tool▁sep｜>{READ}<｜tool▁call▁end｜>",
        call(0, "read", READ),
    ),
    ReplySample(
        "deepseek-r1",
        DEEPSEEK_R1,
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n"
        f"```json\n{READ}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        "list_files\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (reasoning("Hm."), *call(0, "read", READ), *call(1, "list_files", "{}")),
        in_reasoning=True,
    ),
    ReplySample(
        "qwen3-coder",
        QWEN3_CODER,
        "I edit.\n\n<tool_call>\n<function=edit>\n<parameter=path>\nsrc/a.py\n</parameter>\n"
        '<parameter=text>\n\n  if "a" < b:\n    </parameter> \\n\n\n</parameter>\n'
        "<parameter=ranges>\n[1, 2]\n</parameter>\n<parameter=dry>\nTrue\n</parameter>\n"
        "<parameter=note>\nnull\n</parameter>\n<parameter=unknown>\n1.5\n</parameter>\n"
        "</function>\n</tool_call>",
        (
            content("I edit."),
            *call(
                0,
                "edit",
                '{"path": "src/a.py", "text": "\\n  if \\"a\\" < b:\\n    </parameter> \\\\n\\n", '
                '"ranges": [1, 2], "dry": true, "note": null, "unknown": 1.5}',
            ),
        ),
    ),
    ReplySample(
        "qwen3-coder-without-tag",
        QWEN3_CODER,
        "I look.\n<function=read>\n<parameter=path>\nsrc/a.py\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=list_files>\n</function>\n</tool_call>",
        (content("I look."), *call(0, "read", READ), *call(1, "list_files", "{}")),
    ),
    ReplySample(
        "qwen3.5-numbers-for-strings",
        QWEN35,
        "So.\n</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\n12\n</parameter>\n"
        "<parameter=line>\n12\n</parameter>\n</function>\n</tool_call>",
        (reasoning("So."), *call(0, "read", '{"path": "12", "line": 12}')),
        in_reasoning=True,
    ),
    ReplySample(
        "seed-oss",
        SEED_OSS,
        "<seed:think>So.</seed:think>\n<seed:tool_call>\n<function=edit>\n"
        '<parameter=text>a\nb\n</parameter>\n<parameter=options>{"x": {}}</parameter>\n'
        "</function>\n</seed:tool_call>",
        (reasoning("So."), *call(0, "edit", '{"text": "a\\nb\\n", "options": {"x": {}}}')),
    ),
    ReplySample(
        "minimax",
        MINIMAX,
        'So.\n</think>\n\n\n<minimax:tool_call>\n<invoke name="read">\n'
        '<parameter name="path">src/a.py</parameter>\n</invoke>\n<invoke name="list_files">\n'
        "</invoke>\n</minimax:tool_call>",
        (reasoning("So."), *call(0, "read", READ), *call(1, "list_files", "{}")),
        in_reasoning=True,
    ),
    ReplySample(
        "deepseek-v3.2",
        DEEPSEEK_V32,
        'Hm.</think><｜DSML｜function_calls>\n<｜DSML｜invoke name="edit">\n'
        '<｜DSML｜parameter name="note" string="true">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="unknown" string="false">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        (reasoning("Hm."), *call(0, "edit", '{"note": "null", "unknown": [1]}')),
        in_reasoning=True,
    ),
    ReplySample(
        "glm",
        GLM,
        "\n<think>So.</think>\nI look.\n<tool_call>read\n<arg_key>path</arg_key>\n"
        "<arg_value>src/a.py</arg_value>\n<arg_key>line</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n<tool_call>list_files</tool_call>",
        (
            reasoning("So."),
            content("I look."),
            *call(0, "read", '{"path": "src/a.py", "line": 3}'),
            *call(1, "list_files", "{}"),
        ),
    ),
    ReplySample(
        "gpt-oss-call",
        GPT_OSS,
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.read "
        f"<|constrain|>json<|message|>{READ}",
        (reasoning("Look."), content("I look."), *call(0, "read", READ)),
    ),
    ReplySample(
        "gpt-oss-recipient-first",
        GPT_OSS,
        f" to=functions.read<|channel|>commentary json<|message|>{READ}<|call|>",
        call(0, "read", READ),
    ),
    ReplySample(
        "gpt-oss-final",
        GPT_OSS,
        "<|channel|>analysis<|message|>So. <|end|><|start|>assistant<|channel|>final<|message|>"
        "Yes.",
        (reasoning("So."), content("Yes.")),
    ),
    ReplySample("gpt-oss-without-header", GPT_OSS, "Yes.", (content("Yes."),)),
    ReplySample(
        "gpt-oss-broken-call",
        GPT_OSS,
        "<|channel|>commentary to=functions.read<|message|>src/a.py<|end|>",
        (
            ParseWarning("a tool call is not well formed: the arguments are missing"),
            content("<|channel|>commentary to=functions.read<|message|>src/a.py"),
        ),
    ),
    ReplySample(
        "lfm2",
        LFM2,
        "<|tool_call_start|>[edit(path=\"src/a.py\", text='a\\n\"b\\'', ranges=[1, -2.5], "
        "options={'x': (True, None)}), list_files()]<|tool_call_end|>Looking.",
        (
            *call(
                0,
                "edit",
                '{"path": "src/a.py", "text": "a\\n\\"b\'", "ranges": [1, -2.5], '
                '"options": {"x": [true, null]}}',
            ),
            *call(1, "list_files", "{}"),
            content("Looking."),
        ),
    ),
    ReplySample(
        "lfm2-json",
        LFM2,
        '<|tool_call_start|>[{"name": "read", "arguments": {"path": "src/a.py"}}]<|tool_call_end|>',
        call(0, "read", READ),
    ),
    ReplySample("llama-4", LLAMA4, '[read(path="src/a.py")]', call(0, "read", READ)),
    ReplySample(
        "llama-4-answers-list",
        LLAMA4,
        "[1, 2] and more",
        (
            ParseWarning("a tool call is not well formed: '(' is missing"),
            content("[1, 2] and more"),
        ),
    ),
    ReplySample(
        "gemma-4-empty-thoughts",
        GEMMA4,
        "<|channel><|channel>thought\n<channel|>Hello, `<channel|>`.<|channel>thought\n<channel|>"
        "<channel|>",
        (content("Hello, `<channel|>`."),),
    ),
    ReplySample(
        "gemma-4",
        GEMMA4,
        '<|channel>thought\nLook.\n<channel|><|tool_call>call:edit{path:<|"|>src/a.py<|"|>,'
        'text:<|"|>a {b}, "c"\n<|"|>,ranges:[1,2],options:{x:<|"|>y<|"|>,z:null},dry:true}'
        "<tool_call|><|tool_call>call:list_files{}<tool_call|>",
        (
            reasoning("Look."),
            *call(
                0,
                "edit",
                '{"path": "src/a.py", "text": "a {b}, \\"c\\"\\n", "ranges": [1, 2], '
                '"options": {"x": "y", "z": null}, "dry": true}',
            ),
            *call(1, "list_files", "{}"),
        ),
    ),
)

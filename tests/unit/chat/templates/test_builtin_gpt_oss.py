"""The built-in template of gpt-oss shows tools, calls and results in the channels of the model."""

from __future__ import annotations

from typing import Any

from milepost.api.openai.messages import parse_conversation
from milepost.chat.templates.builtin_templates import BUILTIN_TEMPLATES
from milepost.chat.templates.template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Read it."}
CHANNELS = (
    "<|start|>system<|message|># Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.\nCalls to these tools must go to the commentary channel: "
    "'functions'.<|end|>"
)
QUESTION = "<|start|>user<|message|>Read it.<|end|>"


def render(*messages: dict[str, Any], tools: list[dict[str, Any]] | None) -> str:
    """Return a prompt with its generation prompt."""
    template = ChatTemplate(BUILTIN_TEMPLATES["gpt-oss"], name="test")
    return template.render(parse_conversation(list(messages), tools)).text


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    """Return a tool; its first argument is required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def list_of(*tools: dict[str, Any]) -> str:
    """Return what a prompt lists of tools."""
    text = render(USER, tools=list(tools))
    return text.partition("namespace functions {\n\n")[2].partition("} // namespace")[0]


def test_without_tools_messages_are_all_there_is() -> None:
    answer = {"role": "assistant", "content": "Done."}
    assert render(SYSTEM, USER, answer, USER, tools=None) == (
        "<|start|>system<|message|>Be brief.<|end|>"
        f"{QUESTION}<|start|>assistant<|channel|>final<|message|>Done.<|end|>"
        f"{QUESTION}<|start|>assistant"
    )


def test_tools_stand_with_the_system_message_in_one_of_the_developer() -> None:
    text = render(SYSTEM, USER, tools=[tool("read", path={"type": "string"})])
    assert text == (
        f"{CHANNELS}<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n"
        "## functions\n\nnamespace functions {\n\ntype read = (_: {\npath: string,\n}) => any;\n\n"
        f"}} // namespace functions<|end|>{QUESTION}<|start|>assistant"
    )


def test_tools_are_written_as_types() -> None:
    assert list_of(
        tool(
            "edit",
            "Edits a file.\nCarefully.",
            path={"type": "string", "description": "Where."},
            mode={"enum": ["all", 1], "default": "all"},
            lines={"type": "array", "items": {"type": ["integer", "null"]}},
            options={"type": "object", "properties": {"deep": {"type": "boolean"}}},
            note={"anyOf": [{"type": "string"}, {"type": "null"}]},
            other={"$ref": "#/$defs/other"},
            free=True,
        ),
        tool("look"),
    ) == (
        "// Edits a file.\n// Carefully.\ntype edit = (_: {\n"
        "// Where.\npath: string,\n"
        'mode?: "all" | 1, // default: "all"\n'
        "lines?: (number | null)[],\n"
        "options?: {\ndeep?: boolean,\n},\n"
        "note?: string | null,\n"
        "other?: any,\n"
        "free?: any,\n"
        "}) => any;\n\ntype look = () => any;\n\n"
    )


def test_calls_and_results_stand_in_the_commentary_channel() -> None:
    calls = [
        {"id": f"id{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate([("read", '{"path": "a"}'), ("look", "{}")])
    ]
    reply = {
        "role": "assistant",
        "reasoning_content": "Both.",
        "content": "I look.",
        "tool_calls": calls,
    }
    results = [
        {"role": "tool", "tool_call_id": "id1", "content": "seen"},
        {"role": "tool", "tool_call_id": "id0", "content": "one line"},
    ]
    tools = [tool("read", path={"type": "string"}), tool("look")]
    written = (
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>"
        '{"path": "a"}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
        "{}<|call|>"
        "<|start|>functions.look to=assistant<|channel|>commentary<|message|>seen<|end|>"
        "<|start|>functions.read to=assistant<|channel|>commentary<|message|>one line<|end|>"
    )
    reasoning = "<|start|>assistant<|channel|>analysis<|message|>Both.<|end|>"
    text = render(USER, reply, *results, tools=tools)
    assert text.endswith(f"{QUESTION}{reasoning}{written}<|start|>assistant")
    later = render(USER, reply, *results, USER, tools=tools)  # where the reasoning is left out
    assert later.endswith(f"{QUESTION}{written}{QUESTION}<|start|>assistant")

"""Shows tools, calls and results to models whose template leaves them out.

Some templates ignore `tools`, and many of those the calls and results of a history too. Then the
tools are described in the system message, calls become text of their reply, and results become
messages of the user. What a template shows by itself is left to it.

    system   Be brief.                              user   List the files.
             # Tools … <tools>{"name": "ls", …}     reply  <tool_call>{"name": "ls", …}</tool_call>
                                                    user   <tool_response>a.py</tool_response>

Everything depends on the message itself and its neighbours only, so that a history stays as it is
when it grows. Called by `ChatTemplate.render` once control texts are marked: descriptions and
results keep their marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.formats.json_calls import JsonBody
from milepost.chat.formats.probe_texts import (
    LATER_USER,
    NAMES,
    SYSTEM,
    USER,
    Probe,
    answer,
    system,
    user,
)
from milepost.chat.formats.reply_format import Affix, ReplyFormat, ToolCallFormat, WrittenCall
from milepost.chat.templates.message_probe import (
    shows_calls,
    shows_results,
    treat_consecutive_users,
    treat_first_system,
)
from milepost.kinds import SYSTEM_ROLES, TOOL_ROLES

CALLS = ToolCallFormat(JsonBody(), call=Affix("<tool_call>", "</tool_call>"))
RESULT = Affix("<tool_response>\n", "\n</tool_response>")
EXAMPLE = WrittenCall(
    "TOOL_NAME",
    {"ARGUMENT_NAME": "VALUE"},
    '{"ARGUMENT_NAME": "VALUE"}',
    call_id="ID",
)


@dataclass(frozen=True, slots=True)
class ToolFallback:
    """What a template leaves out of conversations with tools, and is written into texts instead."""

    tools_in: Literal["none", "system", "first_user"] = "none"  # the message that describes tools
    writes_calls: bool = False  # calls become text of the reply
    writes_results: bool = False  # results become messages of the user
    joins_users: bool = False  # texts of the user that follow results are parts of their message


def plan_tool_fallback(probe: Probe, reply: ReplyFormat) -> ToolFallback | None:
    """Return what has to be done for a template, None if nothing has to or can be.

    `reply` is what the template itself shows. Costs three renderings where all is well, and up to
    eight more.
    """
    if reply.tool_calls is not None and reply.tool_calls.body.reads_whole_reply:
        return None  # its calls cannot be part of a text
    lists = _lists_tools(probe)
    if lists and reply.tool_calls is None and shows_calls(probe):
        return None  # calls in a history could not be written as this model writes them
    # A form that is shown but not understood would stand beside the one that is described.
    writes_calls = reply.tool_calls is None or not shows_calls(probe)
    if lists:
        return ToolFallback(writes_calls=True) if writes_calls else None
    if USER not in (probe.prompt(user()) or ""):
        return None  # there is no place for texts
    return ToolFallback(
        tools_in="system" if treat_first_system(probe) == "kept" else "first_user",
        writes_calls=writes_calls,
        writes_results=writes_calls or not shows_results(probe),
        joins_users=treat_consecutive_users(probe) != "kept",
    )


def _lists_tools(probe: Probe) -> bool:
    talks = ([user()], [system(), user()], [user(), answer(), user(LATER_USER)])
    return any(NAMES[0] in (probe.prompt(*talk, tools=True) or "") for talk in talks)


def choose_calls(reply: ReplyFormat, fallback: ToolFallback | None) -> ReplyFormat:
    """Return how replies are written once the tools are described."""
    if fallback is None or fallback.tools_in == "none" or reply.tool_calls is not None:
        return reply
    return replace(reply, tool_calls=CALLS)


def read_default_system(probe: Probe) -> str | None:
    """Return what a template writes where there is no system message; empty if nothing.

    A system message of ours replaces it, and has to repeat it; None if the template would write
    it differently then (SmolLM3 takes words out).
    """
    given = probe.history(system(), user()) or ""
    without = probe.history(user()) or ""
    start, found, rest = given.partition(SYSTEM)
    end = rest.partition(USER)[0]
    head = without.partition(USER)[0]
    if not found or len(head) <= len(start) + len(end):
        return ""
    if not head.startswith(start) or not head.endswith(end):
        return ""
    default = head[len(start) : len(head) - len(end)]
    return default if probe.history(system(default), user()) == without else None


def describe_tools(
    tools: list[dict[str, Any]], form: ToolCallFormat, fallback: ToolFallback
) -> str:
    """Return what a model is told of tools and calls."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    parts = [
        "# Tools\n\nYou can call these tools, each described as JSON:",
        f"<tools>\n{listed}\n</tools>",
    ]
    parts.append(f"To call a tool, write for each call:\n{form.write_calls([EXAMPLE])}")
    place = f", each between {RESULT.start.strip()} and {RESULT.end.strip()}"
    parts.append(
        "Then end your reply. The results come in the next message"
        f"{place if fallback.writes_results else ''}. Answer without a call if you need no tool."
    )
    return "\n\n".join(parts)


def write_tools(
    conversation: Conversation,
    form: ToolCallFormat,
    fallback: ToolFallback,
    default_system: Callable[[], str | None],
) -> Conversation:
    """Return a conversation that shows its tools, calls and results in texts.

    `default_system` is asked for only if a system message is added.
    """
    writing = _Writing(conversation, form, fallback)
    writing.write_messages()
    tools = conversation.tools
    if tools and fallback.tools_in != "none":
        description = describe_tools(tools, form, fallback)
        if fallback.tools_in != "system" or not writing.add_to_system(description, default_system):
            writing.add_to_user(description)
        # Templates that show calls were probed with tools, and may look whether there are any.
        tools = None if fallback.writes_calls else tools
    return replace(
        conversation,
        messages=writing.messages,
        tools=tools,
        argument_texts=writing.argument_texts,
    )


@dataclass(slots=True)
class _Writing:
    """The messages of a conversation that is being written."""

    conversation: Conversation
    form: ToolCallFormat
    fallback: ToolFallback
    messages: list[Message] = field(default_factory=list)
    argument_texts: dict[tuple[int, int], str] = field(default_factory=dict)

    def write_messages(self) -> None:
        last_role = ""
        for i, message in enumerate(self.conversation.messages):
            role = message["role"]
            is_result = role in TOOL_ROLES and self.fallback.writes_results
            if is_result:
                self._add_user(_result_text(message), joins=last_role in TOOL_ROLES)
            elif role == "user" and last_role in TOOL_ROLES and self.fallback.joins_users:
                self._add_user(message["content"], joins=self.fallback.writes_results)
            elif "tool_calls" in message and self.fallback.writes_calls:
                self.messages.append(self._with_call_texts(message, i))
            else:
                self._keep(message, i)
            last_role = role

    def add_to_system(self, description: str, default_system: Callable[[], str | None]) -> bool:
        """Add to the first message, or one before it; say whether that was possible."""
        first = self.messages[0] if self.messages else None
        if first is not None and first["role"] in SYSTEM_ROLES:
            text = _join(first["content"], description, "\n\n")
            self.messages[0] = {**first, "content": text}
            return True
        default = default_system()
        if default is None:
            return False
        self._insert({"role": "system", "content": _join(default, description, "\n\n")})
        return True

    def add_to_user(self, description: str) -> None:
        """Add to the first message of the user, which stays where it is."""
        for i, message in enumerate(self.messages):
            if message["role"] == "user":
                text = _join(description, message["content"], "\n\n")
                self.messages[i] = {**message, "content": text}
                return
        self._insert({"role": "user", "content": description})

    def _insert(self, message: Message) -> None:
        self.messages.insert(0, message)
        self.argument_texts = {(i + 1, j): text for (i, j), text in self.argument_texts.items()}

    def _add_user(self, text: str, *, joins: bool) -> None:
        """Add a text of the user, as a part of the last message with `joins`."""
        if joins:
            last = self.messages[-1]
            self.messages[-1] = {**last, "content": f"{last['content']}\n{text}"}
        else:
            self.messages.append({"role": "user", "content": text})

    def _keep(self, message: Message, index: int) -> None:
        for j in range(len(message.get("tool_calls", ()))):
            text = self.conversation.argument_texts[index, j]
            self.argument_texts[len(self.messages), j] = text
        self.messages.append(message)

    def _with_call_texts(self, message: Message, index: int) -> Message:
        calls = [
            written_call(call, self.conversation.argument_texts[index, j])
            for j, call in enumerate(message["tool_calls"])
        ]
        written = {key: value for key, value in message.items() if key != "tool_calls"}
        written["content"] = _join(message["content"], self.form.write_calls(calls), "\n")
        return written


def written_call(call: dict[str, Any], arguments_text: str) -> WrittenCall:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if not isinstance(arguments, dict):  # as `wrap_arguments` does
        arguments = {"arguments": arguments}
        arguments_text = json.dumps(arguments, ensure_ascii=False)
    return WrittenCall(name, arguments, arguments_text.strip(), call.get("id", ""))


def _result_text(message: Message) -> str:
    return f"{RESULT.start}{message['content']}{RESULT.end}"


def _join(one: str, other: str, gap: str) -> str:
    return f"{one}{gap}{other}" if one and other else one or other

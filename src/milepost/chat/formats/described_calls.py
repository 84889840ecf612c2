"""Reads the format of tool calls from the words in which a prompt explains it.

Some templates explain calls to the model and never write one: histories lose them, or hold them as
contents. Only what is explained by an example in tags can be read.
"""

from __future__ import annotations

import re

from milepost.chat.formats.probe_texts import NAMES, Probe, user
from milepost.chat.formats.reply_format import Affix, JsonBody, ToolCallFormat

# <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>
EXAMPLE = re.compile(
    r"(?P<start><(?P<tag>[\w:.|-]+)>)\s*(?P<list>\[?)\s*"
    r"\{+\s*\"(?P<name>name|tool_name|function)\"\s*:\s*[^\n{}]{1,80}?,\s*"
    r"\"(?P<arguments>arguments|parameters|args)\"\s*:[^\n]{1,200}?\}+\s*"
    r"(?(list)(?:[^\n]{0,200}?\])?)\s*"
    r"(?P<end></(?P=tag)>)"
)
# <|tool_call|> followed by a JSON list of tools used
JSON_LIST = re.compile(r"(?P<start><\|[\w:.-]+\|>)['\"`]? followed by a JSON (?:list|array)")


def read_described_calls(probe: Probe) -> ToolCallFormat | None:
    """Return the format that a prompt with tools explains, None if it explains none."""
    prompt = probe.prompt(user(), tools=True)
    prompt = prompt or ""
    listed = JSON_LIST.search(prompt)
    if listed is not None:
        return ToolCallFormat(JsonBody(in_list=True), section=Affix(listed["start"]))
    match = EXAMPLE.search(prompt)
    if match is None or any(name in match[0] for name in NAMES):
        return None
    affix = Affix(match["start"], match["end"])
    body = JsonBody(match["name"], match["arguments"], in_list=bool(match["list"]))
    if body.in_list:
        return ToolCallFormat(body, section=affix)
    return ToolCallFormat(body, call=affix)

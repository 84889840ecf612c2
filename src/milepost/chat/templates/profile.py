"""What probing finds out about a template besides the format of replies: a record, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from milepost.chat.formats.reply_format import Affix, ReplyFormat
from milepost.chat.templates.message_forms import TemplateTraits

# What a template does with a message that is not where it expects one.
Treatment = Literal["kept", "moved", "dropped", "refused"]
ToolsPlace = Literal["none", "start", "last_user"]  # last_user: it moves with each user message


@dataclass(frozen=True, slots=True)
class GenerationPrompts:
    """What a prompt ends with, by whether reasoning is wanted (`enable_thinking`)."""

    with_reasoning: str
    without_reasoning: str
    opens_reasoning: bool  # the first ends inside of reasoning
    opens_reasoning_anyway: bool  # the second does
    switches: tuple[str, ...]  # variables about reasoning that change the prompt


@dataclass(frozen=True, slots=True)
class MessageFrames:
    """What stands around the text of a message, by role; None where a template shows no text."""

    system: Affix | None
    user: Affix | None
    assistant: Affix | None
    tool: Affix | None  # the result of a tool; NAME and ID stand for those of its call


@dataclass(frozen=True, slots=True)
class ToolFallback:
    """What a template leaves out of conversations with tools, and is written into texts instead."""

    tools_in: Literal["none", "system", "first_user"] = "none"  # the message that describes tools
    writes_calls: bool = False  # calls become text of the reply
    writes_results: bool = False  # results become messages of the user
    joins_users: bool = False  # texts of the user that follow results are parts of their message


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template does with conversations."""

    traits: TemplateTraits
    reply: ReplyFormat
    tool_fallback: ToolFallback | None  # the facts below are those of the template without it
    generation: GenerationPrompts
    frames: MessageFrames
    tools: ToolsPlace  # where the tools are listed
    shows_calls: bool  # tool calls stay in histories
    groups_results: bool  # results that follow each other share one message
    shows_result_ids: bool
    first_system: Treatment
    later_system: Treatment
    consecutive_users: Treatment
    consecutive_replies: Treatment
    image_text: str  # what stands for an image between texts; "" if images are not known

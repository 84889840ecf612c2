"""What probing finds out about a template besides the format of replies: a record, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from milepost.chat.reply_format import Affix, ReplyFormat
from milepost.chat.template_messages import TemplateTraits

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
class TemplateFacts:
    """What a template does with conversations."""

    traits: TemplateTraits
    reply: ReplyFormat
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

"""What the facts about a template mean for those who use it, as sentences."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from milepost.chat.templates.profile import TemplateFacts, ToolFallback
from milepost.chat.templates.template_set import TemplateSet

logger = logging.getLogger(__name__)


def describe_consequences(facts: TemplateFacts) -> list[str]:
    """Return the sentences that hold for a template, what is missing first."""
    return [*_about_tools(facts), *_about_reasoning(facts), *_about_messages(facts)]


def log_consequences(templates: TemplateSet) -> None:
    """Log the sentences that hold for the templates of a model, one line each."""
    for template in (templates.default, templates.tool_use):
        if template is not None and (notes := describe_consequences(template.facts)):
            logger.info("chat template of %s: %s", template.name, " ".join(notes))


def _about_tools(facts: TemplateFacts) -> Iterator[str]:
    fallback = facts.tool_fallback
    if facts.tools == "none":
        yield _about_missing_tools(fallback)
    elif facts.reply.tool_calls is None:
        yield "The form of tool calls is not known: calls stay text."
    if facts.tools != "none" and not facts.shows_calls:
        yield (
            "Tool calls of earlier replies are left out: "
            + ("the model sees results only." if fallback is None else "they become its text.")
        )
    if facts.tools == "last_user":
        yield (
            "Tools stand before the last user message: each new one moves them, and what is behind "
            "the user message before is computed again."
        )
    calls = facts.reply.tool_calls
    if calls is not None and facts.tools != "none" and not calls.takes_several:
        yield "A reply holds one tool call at most."


def _about_missing_tools(fallback: ToolFallback | None) -> str:
    if fallback is None:
        return "Tools are not listed: the model learns of none."
    place = "system message" if fallback.tools_in == "system" else "first message of the user"
    rest = "; calls and results become texts" if fallback.writes_calls else ""
    return f"Tools are not listed: they are described in the {place}{rest}."


def _about_reasoning(facts: TemplateFacts) -> Iterator[str]:
    reasoning = facts.reply.reasoning
    if reasoning is None:
        return
    if facts.generation.opens_reasoning_anyway:
        yield "Every reply begins with reasoning; enable_thinking does not end it."
    if reasoning.earlier == "dropped_before_last_user":
        yield (
            "Reasoning is left out of histories once the user speaks again: from there on, replies "
            "are computed anew."
        )
    elif reasoning.earlier == "dropped":
        yield "Reasoning is never written into histories."


def _about_messages(facts: TemplateFacts) -> Iterator[str]:
    first, later = facts.first_system, facts.later_system
    if first == "refused":
        yield "There is no system role."
    elif first == "moved":
        yield "The system message stands in the last user message and moves with it."
    if later == "moved":
        yield "A later system message is moved to the start: all that follows is computed again."
    elif later == "dropped":
        yield "A later system message is left out."
    elif later == "refused" and first != "refused":
        yield "A later system message is refused."
    if facts.consecutive_users == "refused":
        yield "Users and replies must alternate."
    if facts.image_text != facts.image_text.strip():
        yield (
            f"The template writes {facts.image_text!r} for an image; here the marks of its "
            "projector stand there, without white space beside them."
        )
